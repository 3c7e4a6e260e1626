"""exec_python: a function runs inside, with what its sandbox needs brought along."""

import io
import os
import pathlib
import shlex
import subprocess
import tarfile

import cloudpickle
from openshell import Sandbox
from openshell._proto import openshell_pb2 as pb

from harness import Group, W, contains, equal, refused
from shared import client, idle

# A test's modules are not inside: their functions travel by value.
cloudpickle.register_pickle_by_value(__import__(__name__))
group = Group()

INSTALL = """
set -e
site=$(python3 -c 'import site; print(site.getusersitepackages())')
mkdir -p "$site" ~/.local/bin
tar -xf - -C "$site"
command -v python >/dev/null || ln -s "$(command -v python3)" ~/.local/bin/python
"""


def archive():
    """cloudpickle as it is installed here, for standard input."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(pathlib.Path(cloudpickle.__file__).parent, "cloudpickle", filter=lambda one: None if "__pycache__" in one.name else one)
    return data.getvalue()


def square(x, *, plus=0):
    import os

    print("inside", os.environ["OPENSHELL_SANDBOX"], os.getcwd(), os.environ.get("GIVEN"))
    return x * x + plus


@group.check("exec_python after installing cloudpickle from standard input: arguments, result, folder, variables")
def _():
    with Sandbox(name="functions", spec=idle(), **W) as sandbox:
        result = sandbox.exec(["sh", "-c", INSTALL], stdin=archive())
        equal((result.exit_code, result.stderr), (0, ""))
        result = sandbox.exec_python(square, args=(6,), kwargs={"plus": 6}, workdir="/tmp", env={"GIVEN": "x"})
        equal((result.exit_code, result.stdout, result.stderr), (0, "inside 1 /tmp x\n42\n", ""))
        session = client().get_session("functions", **W)
        equal(session.exec_python(lambda: None).stdout, "")
        failed = client().exec_python("functions", lambda: 1 // 0, timeout_seconds=60, **W)
        equal(failed.exit_code, 1)
        contains(failed.stderr, "ZeroDivisionError")
        big = "x" * 16_000
        equal(sandbox.exec_python(lambda: len(big)).stdout, "16000\n")
        huge = "x" * 40_000
        error = refused("INVALID_ARGUMENT", sandbox.exec_python, lambda: len(huge))
        equal([one.field for one in error.field_violations], ["environment[OPENSHELL_PYFUNC_B64]"])


@group.check("exec_python with packages of this machine: a volume below volume_roots, PYTHONPATH and PATH")
def _():
    spec = idle(environment={"PYTHONPATH": "/opt/python/packages", "PATH": "/opt/python/bin:/usr/bin:/bin"})
    spec.template.driver_config.update({"local": {"volumes": [f"{os.environ['OPENSHELL_TEST_VOLUME']}:/opt/python:ro"]}})
    with Sandbox(spec=spec, **W) as sandbox:
        result = sandbox.exec_python(square, args=(7,))
        equal((result.exit_code, result.stdout, result.stderr), (0, "inside 1 /sandbox None\n49\n", ""))


@group.check("without python or cloudpickle, exec_python ends like any failed command")
def _():
    with Sandbox(spec=idle(), **W) as sandbox:
        result = sandbox.exec_python(square, args=(1,), env={"PATH": "/nowhere"})
        equal(result.exit_code, 127)
        contains(result.stderr, "python: ")

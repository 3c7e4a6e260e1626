"""The examples of docs/python-sdk.md, as they stand there."""

import contextlib
import io
import os
import pathlib
import re
import textwrap

from openshell import Sandbox

from harness import Group, W, contains, equal
from shared import client, idle

group = Group(alone=True)
PAGE = pathlib.Path(__file__).parents[4] / "docs" / "python-sdk.md"


def examples():
    return [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```$", PAGE.read_text(), re.M | re.S)]


def run(example, **names):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, str(PAGE), "exec"), names)
    return output.getvalue()


@group.check("the examples of the page work as they stand there")
def _():
    first, volumes, function = examples()
    equal(run(first), "3 hello\n\n")
    contains(volumes, "/srv/data:")
    run(volumes.replace("/srv/data:", f"{os.environ['OPENSHELL_TEST_VOLUME']}:"))
    contains(client().exec("work", ["ls", "/data"], **W).stdout, "packages")
    client().delete("work", **W)
    with Sandbox(spec=idle(), **W) as sandbox:
        equal(run(function, sandbox=sandbox), "36\n\n")

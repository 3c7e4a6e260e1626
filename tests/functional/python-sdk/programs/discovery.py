"""How the SDK finds the gateway and proves who it is."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from urllib.parse import urlparse

from openshell import SandboxClient, SandboxError, TlsConfig

from harness import Group, W, contains, equal, raised, refused
from shared import gateway_folder

group = Group(alone=True)


@contextlib.contextmanager
def variables(**values):
    before = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def endpoint():
    metadata = json.loads(pathlib.Path(gateway_folder(), "metadata.json").read_text())
    return urlparse(metadata["gateway_endpoint"])


def files(*names):
    folder = pathlib.Path(gateway_folder(), "mtls")
    return TlsConfig(**{f"{name}_path": folder / file for name, file in names})


CA = ("ca", "ca.crt")
PAIR = (("cert", "tls.crt"), ("key", "tls.key"))


@group.check("the active gateway is found by what its first start wrote")
def _():
    metadata = json.loads(pathlib.Path(gateway_folder(), "metadata.json").read_text())
    equal(metadata["auth_mode"], "mtls")
    with variables(OPENSHELL_GATEWAY=None), SandboxClient.from_active_cluster() as client:
        equal(client.health().status, 1)
        client.list_ids(**W)


@group.check("a gateway is found by its explicit name and by OPENSHELL_GATEWAY")
def _():
    name = pathlib.Path(gateway_folder()).name
    with variables(OPENSHELL_GATEWAY="another"):
        error = raised(SandboxError, SandboxClient.from_active_cluster)
        equal(str(error), "gateway 'another' not found")
        with SandboxClient.from_active_cluster(cluster=name) as client:
            client.list_ids(**W)
    with variables(OPENSHELL_GATEWAY=name), SandboxClient.from_active_cluster() as client:
        client.list_ids(**W)


@group.check("a home where OpenShell was never used has no active gateway")
def _():
    with tempfile.TemporaryDirectory() as folder, variables(XDG_CONFIG_HOME=folder, OPENSHELL_GATEWAY=None):
        equal(str(raised(SandboxError, SandboxClient.from_active_cluster)), "no active gateway configured")


@group.check("without XDG_CONFIG_HOME the files are found below ~/.config")
def _():
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(os.path.join(os.environ["XDG_CONFIG_HOME"], "openshell"), os.path.join(home, ".config/openshell"))
        with variables(XDG_CONFIG_HOME=None, HOME=home), SandboxClient.from_active_cluster() as client:
            client.list_ids(**W)


@group.check("an endpoint with the files named by hand, by address and by localhost")
def _():
    for host in (endpoint().hostname, "localhost"):
        with SandboxClient(f"{host}:{endpoint().port}", tls=files(CA, *PAIR)) as client:
            client.list_ids(**W)


@group.check("without a client certificate: health answers, anything else is UNAUTHENTICATED with the next step")
def _():
    with SandboxClient(endpoint().netloc, tls=files(CA)) as client:
        equal(client.health().status, 1)
        error = refused("UNAUTHENTICATED", client.list_ids, **W)
        contains(error.details(), "certificate")


@group.check("neither the system's roots nor plain text reach the gateway")
def _():
    for tls in (TlsConfig(), None):
        with SandboxClient(endpoint().netloc, tls=tls, timeout=5) as client:
            refused("UNAVAILABLE", client.list_ids, **W)

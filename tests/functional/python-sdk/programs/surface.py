"""The SDK's public surface, and what of it answers UNIMPLEMENTED."""

import inspect
import json
import os

import openshell
from openshell import (
    ClientCredentialsAuth,
    ProviderClient,
    SandboxClient,
    SandboxError,
    SandboxTemplateClient,
    WorkspaceClient,
)

from harness import Group, W, contains, equal, raised, refused, report
from shared import client

group = Group()


def surface():
    """Every public method and property of the SDK's clients, as Class.name."""
    names = set()
    for class_name in openshell.__all__:
        found = getattr(openshell, class_name)
        if not inspect.isclass(found) or found.__module__ not in ("openshell.sandbox", "openshell.providers"):
            continue
        if issubclass(found, (Exception, int)) or hasattr(found, "__dataclass_fields__"):
            continue
        names |= {f"{class_name}.{name}" for name in vars(found) if not name.startswith("_")}
        names |= {f"{class_name}.{name}" for name in ("__enter__", "__exit__", "__call__", "__iter__", "__next__") if name in vars(found)}
    return sorted(names)


templates = lambda: SandboxTemplateClient.from_sandbox_client(client())
workspaces = lambda: WorkspaceClient.from_sandbox_client(client())

# How each method that is not built yet is called.
CALLS = {
    "ClientCredentialsAuth.__call__": lambda: SandboxClient.from_active_cluster(
        client_credentials=ClientCredentialsAuth(client_secret="s", issuer="https://127.0.0.1:1", client_id="c")
    ),
    "SandboxClient.create_from_template": lambda: client().create_from_template(workload_template="t", **W),
    "SandboxClient.create_session_from_template": lambda: client().create_session_from_template(workload_template="t", **W),
    "SandboxTemplateClient.create": lambda: templates().create(name="t", **W),
    "SandboxTemplateClient.get": lambda: templates().get("t", **W),
    "SandboxTemplateClient.list": lambda: next(templates().list(**W)),
    "SandboxTemplateClient.list_all": lambda: templates().list_all(**W),
    "SandboxTemplateClient.list_for_all_workspaces": lambda: next(templates().list_for_all_workspaces()),
    "SandboxTemplateClient.list_all_for_all_workspaces": lambda: templates().list_all_for_all_workspaces(),
    "SandboxTemplateClient.delete": lambda: templates().delete("t", **W),
    "WorkspaceClient.create": lambda: workspaces().create("w"),
    "WorkspaceClient.delete": lambda: workspaces().delete("w"),
    "ProviderClient.get_credentials": lambda: ProviderClient.from_sandbox_client(client()).get_credentials("p", ["K"], **W),
}


@group.check("what is not built yet says so: the code and the text of the compatibility table")
def _():
    report(surface=surface())
    expected = json.loads(os.environ["OPENSHELL_TEST_NOT_BUILT"])
    equal(sorted(CALLS), sorted(expected))
    for name, (code, text) in expected.items():
        if code == "SandboxError":
            contains(str(raised(SandboxError, CALLS[name])), text)
        else:
            contains(refused(code, CALLS[name]).details(), text)

"""What a caller can read from an error."""

import os
import pathlib
import signal
import time

import grpc
from google.rpc import error_details_pb2
from openshell import ErrorInfo, FieldViolation, GatewayError, SandboxClient, ServiceExposure, from_grpc_error
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb

from harness import Group, W, contains, equal, raised, refused, until
from shared import box, client, idle

group = Group()
crowd = Group(alone=True)
DOMAIN = "openshell.nvidia.com"


def resource(error):
    """The ResourceInfo that the SDK keeps without decoding it."""
    info = error_details_pb2.ResourceInfo()
    for detail in error.raw_status.details:
        if detail.Unpack(info):
            return info.resource_type, info.resource_name
    raise AssertionError("no ResourceInfo")


def supervisor_host():
    """Pid of the gateway's child that supervises sandboxes."""
    gateway = os.environ["OPENSHELL_TEST_GATEWAY_PID"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1]
            if parent == gateway and "/host.mjs" in pathlib.Path("/proc", pid, "cmdline").read_text():
                return int(pid)
        except OSError:
            continue
    raise AssertionError("the gateway has no supervisor host")


def raw_stub():
    return openshell_pb2_grpc.OpenShellStub(client()._channel)


@group.check("INVALID_ARGUMENT: every field with its fault, the reason and the domain")
def _():
    bad = pb.SandboxSpec(command=["a\0b"], environment={"OPENSHELL_X": "1"})
    error = refused("INVALID_ARGUMENT", client().create, name="Bad_Name", labels={"-x": "y"}, spec=bad, **W)
    equal(
        {one.field for one in error.field_violations},
        {"name", "labels[-x]", "spec.command[0]", "spec.environment[OPENSHELL_X]"},
    )
    assert all(isinstance(one, FieldViolation) and one.description for one in error.field_violations)
    equal(error.error_info, ErrorInfo("INVALID_ARGUMENT", DOMAIN, {}))
    equal(error.retry_delay, None)
    first = error.field_violations[0]
    equal(error.details(), f"{first.field}: {first.description} (and 3 more)")


@group.check("a message with umlauts and newlines is the same in the status and in its details")
def _():
    error = refused("INVALID_ARGUMENT", client().create, labels={"schlüssel\nzwei 100 % 😀": "x"}, **W)
    contains(error.details(), "schlüssel")
    contains(error.details(), "zwei 100 % 😀]: ")
    equal(error.raw_status.message, error.details())
    equal(error.raw_status.code, grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert error.details().startswith(f"{error.field_violations[0].field}: "), error.field_violations


@group.check("NOT_FOUND and ALREADY_EXISTS name the resource")
def _():
    error = refused("NOT_FOUND", client().get, "no-such", **W)
    equal((error.details(), resource(error)), ("sandbox not found", ("sandbox", "no-such")))
    # An id is not a name.
    refused("NOT_FOUND", client().get, client().get(box(), **W).id, **W)
    error = refused("ALREADY_EXISTS", client().create, name=box(), spec=idle(), **W)
    contains(error.details(), f'sandbox "{box()}" already exists')
    equal(resource(error), ("sandbox", box()))
    error = refused("NOT_FOUND", client().create, workspace="another", spec=idle())
    equal((error.details(), resource(error)), ("workspace not found", ("workspace", "another")))
    for call in (client().stop, client().start, client().delete):
        equal(refused("NOT_FOUND", call, "no-such", **W).details(), "sandbox not found")
    equal(refused("NOT_FOUND", client().exec, "no-such", ["true"], **W).details(), "sandbox not found")


@group.check("a GatewayError is a grpc.RpcError, and keeps what it was made from")
def _():
    error = raised(grpc.RpcError, client().get, "no-such", **W)
    assert isinstance(error, GatewayError)
    assert isinstance(error.raw_error, grpc.RpcError)
    assert from_grpc_error(error) is error
    raw = raised(grpc.RpcError, raw_stub().GetSandbox, pb.GetSandboxRequest(name="no-such"))
    equal(from_grpc_error(raw).code(), grpc.StatusCode.INVALID_ARGUMENT)


@group.check("a selector is required: absent, without an arm, empty, and all workspaces where one is meant")
def _():
    everywhere = datamodel_pb2.WorkspaceSelector(all_workspaces=datamodel_pb2.AllWorkspaces())
    for request in (
        pb.GetSandboxRequest(name=box()),
        pb.GetSandboxRequest(name=box(), workspace_scope=datamodel_pb2.WorkspaceSelector()),
        pb.GetSandboxRequest(name=box(), workspace_scope=datamodel_pb2.WorkspaceSelector(workspace="")),
        pb.GetSandboxRequest(name=box(), workspace_scope=everywhere),
    ):
        error = from_grpc_error(raised(grpc.RpcError, raw_stub().GetSandbox, request))
        equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        assert error.field_violations[0].field.startswith("workspace_scope"), error.field_violations


@group.check("limits of an exec are told by field")
def _():
    big = {"A": "x" * 32_769, "OPENSHELL_X": "1", "b-ä": "x"}
    error = refused("INVALID_ARGUMENT", client().exec, box(), ["true"], env=big, **W)
    equal(
        {one.field for one in error.field_violations},
        {"environment[A]", "environment[OPENSHELL_X]", "environment[b-ä]"},
    )
    assert "xxx" not in error.details(), "a value is quoted"
    error = refused("INVALID_ARGUMENT", client().exec, box(), ["true"] * 1025, **W)
    equal(error.field_violations[0].field, "command")


@group.check("what the local driver cannot do is refused by field before anything is made")
def _():
    template = pb.SandboxTemplate(image="debian")
    gpu = pb.SandboxSpec()
    gpu.resource_requirements.gpu.SetInParent()
    for spec, field in (
        (pb.SandboxSpec(template=template), "spec.template.image"),
        (gpu, "spec.resource_requirements.gpu"),
    ):
        error = raised(GatewayError, client().create, name="never", spec=spec, **W)
        assert error.code().name in ("INVALID_ARGUMENT", "UNIMPLEMENTED"), error.code()
        equal([one.field for one in error.field_violations], [field])
    error = refused("UNIMPLEMENTED", client().create, service_exposures=[ServiceExposure(target_port=80)], **W)
    contains(error.details(), "service exposures are not built yet")
    refused("NOT_FOUND", client().get, "never", **W)


@group.check("a provider that is not there refuses the sandbox")
def _():
    error = raised(GatewayError, client().create, name="never", spec=idle(providers=["no-such"]), **W)
    assert error.code().name in ("NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT"), error.code()
    contains(error.details(), "provider")
    refused("NOT_FOUND", client().get, "never", **W)


@crowd.check("RESOURCE_EXHAUSTED with a retry delay when too many commands wait, and everything works afterwards")
def _():
    name = box()
    host = supervisor_host()
    request = pb.ExecSandboxRequest(
        workspace_scope=datamodel_pb2.WorkspaceSelector(workspace="default"), sandbox=name, command=["true"]
    )
    # More than the gateway keeps waiting for one sandbox; several connections, since each carries a limited number of calls.
    clients = [SandboxClient.from_active_cluster() for _ in range(8)]
    calls = []
    os.kill(host, signal.SIGSTOP)
    try:
        calls = [one._stub.ExecSandbox(request, timeout=20) for _ in range(80) for one in clients]
        deadline = time.monotonic() + 8
        while not any(call.done() for call in calls) and time.monotonic() < deadline:
            time.sleep(0.02)
        done = [call for call in calls if call.done()]
        assert done, "every call waits"
        error = refused("RESOURCE_EXHAUSTED", next, done[0])
        equal(error.retry_delay, 0.1)
        contains(error.details(), "too many executions")
    finally:
        os.kill(host, signal.SIGCONT)
        for call in calls:
            call.cancel()
        for one in clients:
            one.close()

    def works():
        try:
            return client().exec(name, ["echo", "fine"], **W).stdout == "fine\n"
        except GatewayError as error:
            # Until the commands that were given up are gone.
            equal(error.code().name, "RESOURCE_EXHAUSTED")
            return False

    until("a command to run again", works)

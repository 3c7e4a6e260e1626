"""Providers, and what else users reach through the SDK's generated stubs."""

import os

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from openshell import ProviderClient, from_grpc_error
from openshell._proto import datamodel_pb2, openshell_pb2_grpc, sandbox_pb2
from openshell._proto import openshell_pb2 as pb

from harness import Group, W, contains, equal, raised, until
from shared import box, client, idle

group = Group()
SCOPE = datamodel_pb2.WorkspaceSelector(workspace="default")
SECRET = os.environ["OPENSHELL_TEST_SECRET"]


def stub():
    return openshell_pb2_grpc.OpenShellStub(client()._channel)


def failed(code, call, request):
    error = from_grpc_error(raised(grpc.RpcError, call, request))
    equal(error.code().name, code)
    return error


def provider(name="service", **fields):
    return datamodel_pb2.Provider(metadata=datamodel_pb2.ObjectMeta(name=name, labels={"kind": "test"}), type="generic", **fields)


@group.check("a provider is made, and its values never come back")
def _():
    made = stub().CreateProvider(
        pb.CreateProviderRequest(workspace_scope=SCOPE, provider=provider(credentials={"TOKEN": SECRET}, config={"a": "b"}))
    )
    equal((made.provider.metadata.name, made.provider.type, dict(made.provider.config)), ("service", "generic", {"a": "b"}))
    assert SECRET not in str(made), "a secret in an answer"
    error = failed("ALREADY_EXISTS", stub().CreateProvider, pb.CreateProviderRequest(workspace_scope=SCOPE, provider=provider(credentials={"TOKEN": SECRET})))
    assert SECRET not in f"{error} {error.details()}"


@group.check("a provider is got, and listed by label")
def _():
    got = stub().GetProvider(pb.GetProviderRequest(workspace_scope=SCOPE, name="service")).provider
    assert SECRET not in str(got)
    listed = stub().ListProviders(pb.ListProvidersRequest(workspace_scope=SCOPE, label_selector="kind=test"))
    equal([one.metadata.id for one in listed.providers], [got.metadata.id])
    equal(list(stub().ListProviders(pb.ListProvidersRequest(workspace_scope=SCOPE, label_selector="kind=other")).providers), [])
    equal(failed("NOT_FOUND", stub().GetProvider, pb.GetProviderRequest(workspace_scope=SCOPE, name="no-such")).details(), "provider not found")


@group.check("an update merges, and one of an older version is ABORTED with the way out")
def _():
    version = stub().GetProvider(pb.GetProviderRequest(workspace_scope=SCOPE, name="service")).provider.metadata.resource_version
    change = provider(config={"c": "d"})
    change.metadata.resource_version = version
    changed = stub().UpdateProvider(pb.UpdateProviderRequest(workspace_scope=SCOPE, provider=change))
    equal(dict(changed.provider.config), {"a": "b", "c": "d"})
    assert changed.mutation_id
    error = failed("ABORTED", stub().UpdateProvider, pb.UpdateProviderRequest(workspace_scope=SCOPE, provider=change))
    equal((error.error_info.reason, error.error_info.domain), ("RESOURCE_VERSION_CONFLICT", "openshell.nvidia.com"))
    current = str(changed.provider.metadata.resource_version)
    equal(error.error_info.metadata, {"recovery": "REFRESH_STATE", "current_resource_version": current})


@group.check("an expiry is told as a time, and removed only explicitly")
def _():
    when = Timestamp(seconds=4_000_000_000)
    change = pb.UpdateProviderRequest(workspace_scope=SCOPE, provider=provider(), credential_expiration_times={"TOKEN": when})
    equal(stub().UpdateProvider(change).provider.credential_expiration_times["TOKEN"].seconds, when.seconds)
    clear = pb.UpdateProviderRequest(workspace_scope=SCOPE, provider=provider(), clear_credential_expiration_keys=["TOKEN"])
    assert "TOKEN" not in stub().UpdateProvider(clear).provider.credential_expiration_times


@group.check("a sandbox with a provider sees a placeholder; the provider cannot be deleted before it")
def _():
    made = client().create(spec=idle(providers=["service"]), **W)
    client().wait_ready(made.name, **W)
    result = client().exec(made.name, ["sh", "-c", "echo $TOKEN"], **W)
    assert result.stdout.strip() and SECRET not in result.stdout, result
    attached = stub().ListSandboxProviders(pb.ListSandboxProvidersRequest(workspace_scope=SCOPE, sandbox=made.name))
    equal([one.metadata.name for one in attached.providers], ["service"])
    assert SECRET not in str(attached)
    delete = pb.DeleteProviderRequest(workspace_scope=SCOPE, name="service")
    contains(failed("FAILED_PRECONDITION", stub().DeleteProvider, delete).details(), made.name)
    client().delete(made.name, **W)
    until("the sandbox to be gone", lambda: made.id not in client().list_ids(**W))
    equal(stub().DeleteProvider(delete).outcome, pb.DELETION_OUTCOME_COMPLETED)
    equal(failed("NOT_FOUND", stub().DeleteProvider, delete).details(), "provider not found")
    delete.allow_missing = True
    equal(stub().DeleteProvider(delete).outcome, pb.DELETION_OUTCOME_ALREADY_ABSENT)


@group.check("ProviderClient is made from a client, and checks its arguments itself")
def _():
    providers = ProviderClient.from_sandbox_client(client())
    for keys in ([], ["A", "A"], ["1A"], "A"):
        raised(ValueError, providers.get_credentials, "service", keys, **W)


@group.check("the caller's own identity and the gateway's description")
def _():
    user = stub().GetCurrentUser(pb.GetCurrentUserRequest())
    assert user.ByteSize() > 0
    info = stub().GetGatewayInfo(pb.GetGatewayInfoRequest())
    equal(info.gateway_version, client().health().version)
    equal([one.capabilities.driver_name for one in info.compute_drivers], ["local"])


@group.check("watch: the state at once, and the end at a final phase")
def _():
    events = list(
        stub().WatchSandbox(
            pb.WatchSandboxRequest(workspace_scope=SCOPE, sandbox=box(), follow_status=True, stop_on_terminal=True), timeout=20
        )
    )
    equal(events[0].WhichOneof("payload"), "sandbox")
    equal(events[0].sandbox.status.phase, pb.SANDBOX_PHASE_READY)


@group.check("logs of a sandbox")
def _():
    logs = stub().GetSandboxLogs(pb.GetSandboxLogsRequest(workspace_scope=SCOPE, sandbox=box())).logs
    assert len(logs) > 0 and logs[0].HasField("event_time")


@group.check("interactive exec: input while output comes, end of input, terminal and its size")
def _():
    def pipe():
        start = pb.ExecSandboxRequest(workspace_scope=SCOPE, sandbox=box(), command=["cat"])
        yield pb.ExecSandboxInput(start=start)
        for part in (b"one\n", b"two\n"):
            yield pb.ExecSandboxInput(stdin=part)

    events = list(stub().ExecSandboxInteractive(pipe(), timeout=20))
    equal(b"".join(one.stdout.data for one in events), b"one\ntwo\n")
    equal((events[-1].WhichOneof("payload"), events[-1].exit.exit_code), ("exit", 0))

    def terminal():
        start = pb.ExecSandboxRequest(
            workspace_scope=SCOPE, sandbox=box(), command=["stty", "size"], tty=True, rows=33, cols=99
        )
        yield pb.ExecSandboxInput(start=start)

    events = list(stub().ExecSandboxInteractive(terminal(), timeout=20))
    contains(b"".join(one.stdout.data for one in events).decode(), "33 99")


@group.check("the policy in force and its history")
def _():
    config = stub().GetSandboxConfig(sandbox_pb2.GetSandboxConfigRequest(workspace_scope=SCOPE, name=box()))
    assert config.policy_hash
    status = stub().GetSandboxPolicyStatus(pb.GetSandboxPolicyStatusRequest(workspace_scope=SCOPE, sandbox=box()))
    equal(status.revision.policy_hash, config.policy_hash)

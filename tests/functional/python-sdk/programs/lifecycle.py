"""Create, wait, stop, start, delete; sessions and contexts."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import openshell
from openshell import DeletionOutcome, DeletionResult, Sandbox, SandboxClient, SandboxError
from openshell._proto import openshell_pb2 as pb
from openshell._proto import sandbox_pb2 as policy

from harness import Group, W, contains, equal, raised, refused, until
from shared import client, gateway_folder, idle

waits = Group()
contexts = Group()
sessions = Group()
ends = Group()


@waits.check("create: name, labels and command; READY at once where the start was quick, else after waiting")
def _():
    made = client().create(name="made", labels={"team": "blue", "tier": ""}, spec=idle(), **W)
    equal((made.name, made.workspace), ("made", "default"))
    assert made.phase in (pb.SANDBOX_PHASE_PROVISIONING, pb.SANDBOX_PHASE_READY), made.phase
    equal(dict(made.labels), {"team": "blue", "tier": ""})
    assert len(made.id) == 36, made.id
    ready = client().wait_ready("made", **W)
    equal((ready.id, ready.phase, dict(ready.labels)), (made.id, pb.SANDBOX_PHASE_READY, dict(made.labels)))
    equal((ready.status.exit_code, ready.status.restart_count, ready.status.next_restart_at_ms), (None, 0, None))
    assert abs(ready.status.main_process_started_at_ms / 1000 - time.time()) < 60
    condition = next(one for one in ready.conditions if one.type == "Ready")
    equal((condition.status, condition.reason), ("True", "DependenciesReady"))
    assert abs(condition.transition_time_ms / 1000 - time.time()) < 60
    equal(client().get("made", **W), ready)


@waits.check("wait_deleted gives up on a sandbox that stays, and returns at once for another one of that name")
def _():
    error = raised(SandboxError, client().wait_deleted, "made", timeout_seconds=0.1, **W)
    contains(str(error), "was not deleted within timeout")
    client().wait_deleted("made", expected_sandbox_id="the one before", timeout_seconds=5, **W)


@waits.check("stop and start: the phases, and the same sandbox afterwards")
def _():
    before = client().exec("made", ["sh", "-c", "echo kept > ~/file"], **W)
    equal(before.exit_code, 0)
    stopped = client().stop("made", **W)
    equal(client().wait_stopped("made", **W).phase, pb.SANDBOX_PHASE_STOPPED)
    equal(client().stop("made", **W).id, stopped.id)
    error = refused("FAILED_PRECONDITION", client().exec, "made", ["true"], **W)
    contains(error.details(), "phase STOPPED")
    contains(error.details(), "Start it first")
    contains(str(raised(SandboxError, client().wait_ready, "made", **W)), "stopped before becoming ready")
    assert client().start("made", **W).phase in (pb.SANDBOX_PHASE_STARTING, pb.SANDBOX_PHASE_READY)
    equal(client().wait_ready("made", **W).id, stopped.id)
    equal(client().exec("made", ["cat", "file"], **W).stdout, "kept\n")


@waits.check("delete: its outcome and id, NOT_FOUND the second time, ALREADY_ABSENT when that is allowed")
def _():
    id = client().get("made", **W).id
    result = client().delete("made", **W)
    assert result.outcome in (DeletionOutcome.COMPLETED, DeletionOutcome.ACCEPTED), result
    equal(result.sandbox_id, id)
    client().wait_deleted("made", expected_sandbox_id=id, **W)
    error = refused("NOT_FOUND", client().delete, "made", **W)
    equal(error.details(), "sandbox not found")
    equal(client().delete("made", allow_missing=True, **W), DeletionResult(DeletionOutcome.ALREADY_ABSENT, None))


@waits.check("a name is free again as soon as its sandbox is gone")
def _():
    ids = set()
    for _turn in range(4):
        ids.add(client().create(name="again", spec=pb.SandboxSpec(command=["true"]), **W).id)
        deleted = client().delete("again", **W)
        assert deleted.sandbox_id in ids
        client().wait_deleted("again", expected_sandbox_id=deleted.sandbox_id, **W)
    equal(len(ids), 4)


@ends.check("a main process that succeeds: COMPLETED counts as ready, its code is told, exec is refused with the next step")
def _():
    made = client().create(spec=pb.SandboxSpec(command=["true"]), **W)
    contains(made.name, "sandbox-")
    ended = lambda: client().get(made.name, **W).phase == pb.SANDBOX_PHASE_COMPLETED
    until("the end of the main process", ended)
    done = client().wait_ready(made.name, **W)
    equal((done.phase, done.status.exit_code), (pb.SANDBOX_PHASE_COMPLETED, 0))
    error = refused("FAILED_PRECONDITION", client().exec, made.name, ["true"], **W)
    contains(error.details(), "phase COMPLETED")
    contains(error.details(), "Start it again")
    client().delete(made.name, **W)


@ends.check("a main process that fails: waiting raises, its code and the reason are told")
def _():
    made = client().create(spec=pb.SandboxSpec(command=["sh", "-c", "exit 7"]), **W)
    ended = lambda: client().get(made.name, **W).phase == pb.SANDBOX_PHASE_ERROR
    until("the end of the main process", ended)
    contains(str(raised(SandboxError, client().wait_ready, made.name, **W)), "entered error phase")
    contains(str(raised(SandboxError, client().wait_stopped, made.name, **W)), "entered error phase")
    failed = client().get(made.name, **W)
    equal((failed.phase, failed.status.exit_code), (pb.SANDBOX_PHASE_ERROR, 7))
    equal([one.reason for one in failed.conditions if one.type == "Ready"], ["MainProcessFailed"])
    equal(client().delete(made.name, **W).sandbox_id, made.id)


@ends.check("a main process that a signal ends: 128 + signal")
def _():
    made = client().create(spec=pb.SandboxSpec(command=["sh", "-c", "kill -9 $$"]), **W)
    ended = lambda: client().get(made.name, **W).status.exit_code
    equal(until("the end of the main process", ended), 137)
    client().delete(made.name, **W)


@ends.check("a policy in the spec is in force: one host answers, another one is refused")
def _():
    rule = policy.NetworkPolicyRule(
        endpoints=[policy.NetworkEndpoint(host=os.environ["OPENSHELL_TEST_ALLOWED_HOST"], port=443)],
        binaries=[policy.NetworkBinary(path="/**")],
    )
    spec = idle(policy=policy.SandboxPolicy(version=1, network_policies={"api": rule}))
    made = client().create(spec=spec, **W)
    ready = client().wait_ready(made.name, **W)
    equal(ready.current_policy_version, 1)
    curl = ["curl", "-sS", "--max-time", "10", "-o", "/dev/null", "-w", "%{http_code}"]
    allowed = client().exec(made.name, [*curl, os.environ["OPENSHELL_TEST_ALLOWED_URL"]], **W)
    equal((allowed.exit_code, allowed.stdout), (0, "200"))
    equal(client().exec(made.name, [*curl, os.environ["OPENSHELL_TEST_DENIED_URL"]], **W).stdout, "403")
    client().delete(made.name, **W)


@contexts.check("Sandbox as a context: made, ready, used, and gone afterwards")
def _():
    before = Sandbox(**W)
    contains(str(raised(SandboxError, before.exec, ["true"])), "has not been entered")
    contains(str(raised(SandboxError, lambda: before.id)), "has not been entered")
    contains(str(raised(SandboxError, lambda: before.sandbox)), "has not been entered")
    with Sandbox(**W) as sandbox:
        equal(sandbox.sandbox.phase, pb.SANDBOX_PHASE_READY)
        equal(sandbox.id, client().get(sandbox.sandbox.name, **W).id)
        result = sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_seconds=60)
        equal((result.exit_code, result.stdout, result.stderr), (3, "out\n", "err\n"))
        name = sandbox.sandbox.name
    refused("NOT_FOUND", client().get, name, **W)
    contains(str(raised(SandboxError, sandbox.exec, ["true"])), "has not been entered")


@contexts.check("Sandbox: attached by name and by reference; kept or deleted at the end as told")
def _():
    with Sandbox(name="kept", labels={"a": "b"}, spec=idle(), delete_on_exit=False, **W) as sandbox:
        ref = sandbox.sandbox
        equal((ref.name, dict(ref.labels)), ("kept", {"a": "b"}))
    with Sandbox(cluster=os.path.basename(gateway_folder()), sandbox="kept", delete_on_exit=False, **W) as sandbox:
        equal(sandbox.id, ref.id)
        equal(sandbox.exec(["echo", "by name"]).stdout, "by name\n")
    with Sandbox(sandbox=ref, **W) as sandbox:
        equal(sandbox.exec(["echo", "by reference"]).stdout, "by reference\n")
    refused("NOT_FOUND", client().get, "kept", **W)
    refused("NOT_FOUND", Sandbox(sandbox="kept", **W).__enter__)


@contexts.check("Sandbox: an exception inside deletes it and passes on; one deleted inside ends without an error")
def _():
    def fail():
        with Sandbox(**W) as sandbox:
            names.append(sandbox.sandbox.name)
            raise ZeroDivisionError

    names = []
    raised(ZeroDivisionError, fail)
    refused("NOT_FOUND", client().get, names[0], **W)
    with Sandbox(**W) as sandbox:
        client().delete(sandbox.sandbox.name, **W)


@contexts.check("Sandbox: attaching takes neither name nor labels nor template")
def _():
    for wrong in ({"name": "x"}, {"labels": {}}, {"workload_template": "x"}):
        error = raised(SandboxError, Sandbox(sandbox="kept", **W, **wrong).__enter__)
        contains(str(error), "cannot be set when attaching")
    raised(ValueError, client().create, workspace="")


@sessions.check("a session: made, found again, used, stopped, started, deleted")
def _():
    with SandboxClient.from_active_cluster() as own:
        session = own.create_session(name="session", spec=idle(), **W)
        own.wait_ready("session", **W)
        again = own.get_session("session", **W)
        equal(again.id, session.id)
        equal(again.exec(["cat"], stdin=b"in").stdout, "in")
        equal(session.stop().id, session.id)
        own.wait_stopped("session", **W)
        session.start()
        own.wait_ready("session", **W)
        equal(session.exec(["echo", "again"], no_login_shell=True).stdout, "again\n")
        equal(session.delete().sandbox_id, session.id)
        own.wait_deleted("session", expected_sandbox_id=session.id, **W)
        equal(session.delete(allow_missing=True).outcome, DeletionOutcome.ALREADY_ABSENT)


@sessions.check("8 threads with a Sandbox each: every one has its own, and all are gone afterwards")
def _():
    def work(number):
        with Sandbox(labels={"many": "yes"}, **W) as sandbox:
            sandbox.exec(["sh", "-c", f"echo {number} > ~/mine"])
            return sandbox.id, sandbox.exec(["cat", "mine"]).stdout

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    equal([text for _, text in results], [f"{number}\n" for number in range(8)])
    equal(len({id for id, _ in results}), 8)
    equal(client().list_ids(label_selector="many=yes", **W), [])


@sessions.check("environment of the spec: in every command; a command's own wins")
def _():
    made = client().create(spec=idle(environment={"KEPT": "spec", "GIVEN": "spec"}), **W)
    client().wait_ready(made.name, **W)
    result = client().exec(made.name, ["sh", "-c", "echo $KEPT $GIVEN"], env={"GIVEN": "exec"}, **W)
    equal(result.stdout, "spec exec\n")
    client().delete(made.name, **W)


@sessions.check("versions: of the SDK, and of the gateway")
def _():
    equal(openshell.__version__, "0.1.5")
    contains(client().health().version, "0.1.")

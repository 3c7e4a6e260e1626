"""The gateway stops and starts again under a client."""

import json
import os
import subprocess

from openshell import GatewayError, SandboxClient

from harness import Group, W, equal, raised, until
from shared import box, client

group = Group(alone=True)


def openshell(*args):
    subprocess.run([*json.loads(os.environ["OPENSHELL_TEST_CLI"]), *args], check=True, capture_output=True, timeout=60)


@group.check("a restart of the gateway: running calls end with UNAVAILABLE, the same client and sandboxes go on")
def _():
    name = box()
    before = client().get(name, **W)
    equal(client().exec(name, ["sh", "-c", "echo kept > ~/kept"], **W).exit_code, 0)
    stream = client().exec_stream(name, ["sh", "-c", "echo one; exec sleep 7100"], **W)
    equal(next(stream).data, b"one\n")
    openshell("gateway", "stop", "--sandboxes", "keep")
    equal(raised(GatewayError, list, stream).code().name, "UNAVAILABLE")
    equal(raised(GatewayError, client().health).code().name, "UNAVAILABLE")
    openshell("gateway", "start")

    def works():
        try:
            return client().exec(name, ["cat", "kept"], **W)
        except GatewayError as error:
            # Until the connection is there again, and the sandbox's supervisor.
            equal(error.code().name, "UNAVAILABLE")
            return None

    equal(until("the client to work again", works, seconds=30).stdout, "kept\n")
    after = client().get(name, **W)
    equal((after.id, after.status.main_process_started_at_ms), (before.id, before.status.main_process_started_at_ms))
    with SandboxClient.from_active_cluster() as another:
        equal(another.get(name, **W), after)

import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell } from "@openshell/api";
import { TestOpenShell } from "../../tests/support/openshell.ts";
import { GrpcClient } from "../support/grpc.ts";
import { judge } from "../support/report.ts";
import { type Stage, timed } from "../support/stage.ts";
import { median } from "../support/statistics.ts";

const STARTS = 5;
const STANDING = 5;
/** After which a sandbox that does not answer is an error. */
const READY_LIMIT_MS = 20_000;
const SCOPE = { selection: { case: "workspace", value: "default" } } as const;

/** Starting and stopping, without sandboxes and with some that go on meanwhile. */
export async function gateway(stage: Stage): Promise<void> {
  await startAndStop(stage);
  await restart(stage);
}

async function startAndStop(stage: Stage): Promise<void> {
  await using user = TestOpenShell.create(stage.net, { command: [stage.build.launcher] });
  const times = { first: [] as number[], again: [] as number[], stop: [] as number[], node: [] as number[] };
  const openshell = [stage.build.launcher, "gateway"];
  const cwd = user.home.path();
  for (let round = 0; round < STARTS; round += 1) {
    times.node.push((await timed([stage.build.node, "-e", "0"], user.env, cwd)).totalMs);
    const start = await timed([...openshell, "start"], user.env, cwd);
    times[round === 0 ? "first" : "again"].push(start.totalMs);
    if (round === STARTS - 1) break;
    times.stop.push((await timed([...openshell, "stop"], user.env, cwd)).totalMs);
  }
  // Known to its owner by a command that ran.
  await user.ok(["gateway", "stop"]);
  const reference = { what: "node -e 0", value: median(times.node) };
  stage.report(
    judge(
      {
        id: "gateway/start",
        what: "openshell gateway start → listening, later starts",
        measured: median(times.again),
        unit: "ms",
        reference,
        details: { "first start, with its keys": times.first[0]! },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
  stage.report(
    judge(
      { id: "gateway/stop", what: "openshell gateway stop", measured: median(times.stop), unit: "ms", reference },
      { text: "≤ 1 s", atMost: 1000 },
    ),
  );
}

/** From the start of a gateway to its sandboxes of before answering a command: each is asked until it does. */
async function restart(stage: Stage): Promise<void> {
  await using gateway = await stage.freshGateway();
  const { user, folders } = gateway;
  const openshell = [stage.build.launcher, "gateway"];
  const cwd = user.home.path();
  const names = Array.from({ length: STANDING }, (_, index) => `bench-restart-${index}`);
  await Promise.all(names.map((name) => gateway.create({ name })));
  const times = { ready: [] as number[], start: [] as number[] };
  for (let round = 0; round < STARTS; round += 1) {
    await timed([...openshell, "stop", "--sandboxes", "keep"], user.env, cwd);
    const startedAt = performance.now();
    times.start.push((await timed([...openshell, "start"], user.env, cwd)).totalMs);
    using client = new GrpcClient(folders.userSocket);
    await Promise.all(names.map((name) => untilCommand(client, name)));
    times.ready.push(performance.now() - startedAt);
  }
  stage.report(
    judge(
      {
        id: "gateway/restart",
        what: `restart → a command in each of ${STANDING} sandboxes that went on`,
        measured: median(times.ready),
        unit: "ms",
        reference: { what: "start alone", value: median(times.start) },
        details: { slowest: Math.max(...times.ready) },
      },
      { text: "≤ 600 ms", atMost: 600 },
    ),
  );
}

async function untilCommand(client: GrpcClient, sandbox: string): Promise<void> {
  const end = performance.now() + READY_LIMIT_MS;
  const request = { workspaceScope: SCOPE, sandbox, command: ["/bin/true"], noLoginShell: true };
  for (;;) {
    try {
      let code: number | undefined;
      await client.stream(OpenShell.method.execSandbox, request, ({ payload }) => {
        if (payload.case === "exit") code = payload.value.exitCode;
      });
      if (code !== 0) throw new Error(`a command in ${sandbox}: exit ${code}`);
      return;
    } catch (error) {
      if (performance.now() > end) throw error;
      await sleep(5);
    }
  }
}

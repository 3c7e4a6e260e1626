import { DeletionOutcome, OpenShell, SandboxPhase } from "@openshell/api";
import type { TestGateway } from "../../tests/support/api.ts";
import { GrpcClient } from "../support/grpc.ts";
import { cpu, cpuOfEndedChildren } from "../support/processes.ts";
import { judge } from "../support/report.ts";
import { type Stage, timed } from "../support/stage.ts";
import { quantile, summarise } from "../support/statistics.ts";

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
/** Each round measures every command once, so that a slow moment of the machine is shared by all of them. */
const ROUNDS = 25;

function percentiles(times: readonly number[]): { p50: number; p95: number } {
  const { p50, p95 } = summarise({ times, totalMs: 1 });
  return { p50, p95 };
}

/** `openshell run` from the outside, and creating and deleting through the API. */
export async function create(stage: Stage): Promise<void> {
  const gateway = await stage.gateway();
  const env = gateway.user.env;
  const cwd = gateway.user.home.path();
  const { launcher, node } = stage.build;
  const run = (argv: readonly string[]) => timed(argv, env, cwd);
  const commands = {
    run: [launcher, "run", "--", "true"],
    echo: [launcher, "run", "--", "echo", "hi"],
    exec: [launcher, "sandbox", "exec", "bench-cli", "--", "true"],
    version: [launcher, "--version"],
    node: [node, "-e", "0"],
    true: ["/bin/true"],
  } as const;
  const times: Record<keyof typeof commands, number[]> = {
    run: [],
    echo: [],
    exec: [],
    version: [],
    node: [],
    true: [],
  };
  const first: number[] = [];
  const standing = await gateway.create({ name: "bench-cli" });
  for (const argv of Object.values(commands)) await run(argv);
  let cpuMs = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const name of Object.keys(commands) as (keyof typeof commands)[]) {
      const before = name === "run" ? cpuOfEndedChildren() + total(cpu()) : 0;
      const result = await run(commands[name]);
      if (name === "run") cpuMs += cpuOfEndedChildren() + total(cpu()) - before;
      times[name].push(result.totalMs);
      if (name === "echo") first.push(result.firstOutputMs!);
    }
  }
  await standing.delete();
  const [runs, nodes, trues] = [percentiles(times.run), percentiles(times.node), percentiles(times.true)];
  const firsts = percentiles(first);
  const { report } = stage;
  report(
    judge(
      {
        id: "create/first-output",
        what: "openshell run: start → first output",
        measured: firsts.p50,
        unit: "ms",
        reference: { what: "node -e 0", value: nodes.p50 },
        details: { p95: firsts.p95 },
      },
      { text: "≤ 150 ms", atMost: 150 },
    ),
  );
  report(
    judge(
      {
        id: "create/run-true",
        what: "openshell run -- true: start → end",
        measured: runs.p50,
        unit: "ms",
        reference: { what: "node -e 0", value: nodes.p50 },
        details: { p95: runs.p95, "CPU of command, gateway and host, ms": cpuMs / ROUNDS },
      },
      { text: "≤ 5 × Node's start", atMost: 5 * nodes.p50 },
    ),
  );
  report({
    id: "create/run-true-spawn",
    what: "openshell run -- true: start → end",
    measured: runs.p50,
    unit: "ms",
    reference: { what: "/bin/true", value: trues.p50 },
  });
  const versions = percentiles(times.version);
  report(
    judge(
      {
        id: "create/cli-start",
        what: "openshell --version: start → end",
        measured: versions.p50,
        unit: "ms",
        reference: { what: "node -e 0", value: nodes.p50 },
        details: { p95: versions.p95 },
      },
      { text: "≤ Node's start + 30 ms", atMost: nodes.p50 + 30 },
    ),
  );
  const execs = percentiles(times.exec);
  report(
    judge(
      {
        id: "create/cli-exec",
        what: "openshell sandbox exec NAME -- true: start → end",
        measured: execs.p50,
        unit: "ms",
        reference: { what: "node -e 0", value: nodes.p50 },
        details: { p95: execs.p95 },
      },
      { text: "≤ Node's start + 50 ms", atMost: nodes.p50 + 50 },
    ),
  );
  await throughApi(stage, gateway, trues.p50);
}

async function throughApi(stage: Stage, gateway: TestGateway, spawnMs: number): Promise<void> {
  using client = new GrpcClient(gateway.folders.userSocket);
  const answered: number[] = [];
  const ready: number[] = [];
  const deleted: number[] = [];
  const before = total(cpu());
  for (let round = 0; round < ROUNDS; round += 1) {
    const name = `bench-create-${round}`;
    const startedAt = performance.now();
    await client.unary(OpenShell.method.createSandbox, {
      workspaceScope: SCOPE,
      name,
      spec: { command: ["sleep", "86400"] },
    });
    answered.push(performance.now() - startedAt);
    let last: SandboxPhase | undefined;
    let at = 0;
    await client.stream(
      OpenShell.method.watchSandbox,
      { workspaceScope: SCOPE, sandbox: name, followStatus: true, stopOnTerminal: true },
      ({ payload }) => {
        if (payload.case !== "sandbox") return;
        last = payload.value.status?.phase ?? last;
        at = performance.now();
      },
    );
    if (last !== (SandboxPhase.READY as SandboxPhase)) throw new Error(`${name} is ${SandboxPhase[last ?? 0]}`);
    ready.push(at - startedAt);
    const deleteAt = performance.now();
    const { outcome } = await client.unary(OpenShell.method.deleteSandbox, { workspaceScope: SCOPE, name });
    if (outcome !== DeletionOutcome.COMPLETED) throw new Error(`${name}: deletion ${DeletionOutcome[outcome]}`);
    deleted.push(performance.now() - deleteAt);
  }
  const cpuMs = (total(cpu()) - before) / ROUNDS;
  const reference = { what: "/bin/true", value: spawnMs };
  const readyTimes = percentiles(ready);
  stage.report({
    id: "create/api-ready",
    what: "CreateSandbox → READY, through the API",
    measured: readyTimes.p50,
    unit: "ms",
    reference,
    details: {
      p95: readyTimes.p95,
      "answered p50": quantile(
        answered.toSorted((a, b) => a - b),
        0.5,
      ),
      "CPU of gateway and host, with delete, ms": cpuMs,
    },
  });
  const deletes = percentiles(deleted);
  stage.report(
    judge(
      {
        id: "create/delete",
        what: "DeleteSandbox, through the API",
        measured: deletes.p50,
        unit: "ms",
        reference,
        details: { p95: deletes.p95 },
      },
      { text: "≤ 40 ms", atMost: 40 },
    ),
  );
}

function total(sums: Readonly<Record<string, number>>): number {
  return Object.values(sums).reduce((sum, value) => sum + value, 0);
}

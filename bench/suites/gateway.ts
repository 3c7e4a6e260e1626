import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { OpenShell } from "@openshell/api";
import { TestOpenShell } from "../../tests/support/openshell.ts";
import { encode, GrpcClient } from "../support/grpc.ts";
import { judge } from "../support/report.ts";
import { type Stage, timed, Worker } from "../support/stage.ts";
import { quantile } from "../support/statistics.ts";
import type { Answer, Job } from "../workers/api.ts";

const STARTS = 5;
const SANDBOXES = 10;
const CLIENTS = 16;

/** Starting and stopping, and calls that touch no sandbox's process. */
export async function gateway(stage: Stage): Promise<void> {
  await starts(stage);
  await calls(stage);
}

const median = (times: readonly number[]): number =>
  quantile(
    times.toSorted((a, b) => a - b),
    0.5,
  );

async function starts(stage: Stage): Promise<void> {
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

async function calls(stage: Stage): Promise<void> {
  const running = await stage.gateway();
  const sandboxes = await Promise.all(Array.from({ length: SANDBOXES }, () => running.create()));
  using worker = new Worker("api");
  const budgets = { health: 14_000, getSandbox: 8000, listSandboxes: 6000 } as const;
  const names = { health: "Health", getSandbox: "GetSandbox", listSandboxes: `ListSandboxes of ${SANDBOXES}` } as const;
  const job = { kind: "unary", clients: CLIENTS, seconds: stage.seconds, sandbox: sandboxes[0]!.name } as const;
  for (const method of ["health", "getSandbox", "listSandboxes"] as const) {
    const path = join(stage.build.folder, `${method}.sock`);
    const bytes = await answerBytes(running.folders.userSocket, method, sandboxes[0]!.name);
    const file = join(import.meta.dirname, "../workers/h2-server.ts");
    const server = spawn(process.execPath, [file, path, String(bytes)], { stdio: ["ignore", "pipe", "inherit"] });
    await once(server.stdout, "data");
    const bare = await worker.run<Answer>({ ...job, method, socket: path } satisfies Job);
    server.kill();
    await once(server, "exit");
    const ours = await worker.run<Answer>({ ...job, method, socket: running.folders.userSocket } satisfies Job);
    stage.report(
      judge(
        {
          id: `gateway/${method}`,
          what: `${names[method]}, ${CLIENTS} clients`,
          measured: ours.perSecond,
          unit: "/s",
          reference: { what: `bare node:http2, ${bytes} bytes`, value: bare.perSecond },
          details: { p50: ours.p50, p99: ours.p99 },
        },
        { text: `≥ ${budgets[method].toLocaleString("en")}`, atLeast: budgets[method] },
      ),
    );
  }
  await Promise.all(sandboxes.map((sandbox) => sandbox.delete()));
}

async function answerBytes(
  socket: string,
  method: "health" | "getSandbox" | "listSandboxes",
  sandbox: string,
): Promise<number> {
  using client = new GrpcClient(socket);
  const workspaceScope = { selection: { case: "workspace", value: "default" } } as const;
  const { health, getSandbox, listSandboxes } = OpenShell.method;
  if (method === "health") return encode(health.output, await client.unary(health, {})).length;
  if (method === "getSandbox") {
    return encode(getSandbox.output, await client.unary(getSandbox, { workspaceScope, name: sandbox })).length;
  }
  return encode(listSandboxes.output, await client.unary(listSandboxes, { workspaceScope })).length;
}

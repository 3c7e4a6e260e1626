import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { OpenShell } from "@openshell/api";
import { encode, GrpcClient } from "../support/grpc.ts";
import { cpu } from "../support/processes.ts";
import { judge } from "../support/report.ts";
import { type Stage, Worker } from "../support/stage.ts";
import { median } from "../support/statistics.ts";
import type { Answer, Job } from "../workers/api.ts";

const SANDBOXES = 10;
const CLIENTS = 16;
const ROUNDS = 3;
/** Both servers run so long before they are measured: their code is compiled then. */
const WARM_UP_SECONDS = 0.4;

const METHODS = ["health", "getSandbox", "listSandboxes"] as const;
type Method = (typeof METHODS)[number];
const BUDGETS: Readonly<Record<Method, number>> = { health: 14_000, getSandbox: 8000, listSandboxes: 6000 };
const NAMES: Readonly<Record<Method, string>> = {
  health: "Health",
  getSandbox: "GetSandbox",
  listSandboxes: `ListSandboxes of ${SANDBOXES}`,
};

/** Calls of the gateway's API that touch no sandbox's process, in turns with a bare server that answers as many bytes. */
export async function calls(stage: Stage): Promise<void> {
  const running = await stage.gateway();
  const sandboxes = await Promise.all(Array.from({ length: SANDBOXES }, () => running.create()));
  using worker = new Worker("api");
  const sandbox = sandboxes[0]!.name;
  const job = { kind: "unary", clients: CLIENTS, seconds: stage.seconds / ROUNDS, sandbox } as const;
  for (const method of METHODS) {
    const bytes = await answerBytes(running.folders.userSocket, method, sandbox);
    await using bare = await BareServer.start(join(stage.build.folder, `${method}.sock`), bytes);
    for (const socket of [bare.socket, running.folders.userSocket])
      await worker.run<Answer>({ ...job, method, socket, seconds: WARM_UP_SECONDS } satisfies Job);
    const reference: Answer[] = [];
    const ours: Answer[] = [];
    const costs: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      reference.push(await worker.run<Answer>({ ...job, method, socket: bare.socket } satisfies Job));
      const before = cpu().gateway;
      const answer = await worker.run<Answer>({ ...job, method, socket: running.folders.userSocket } satisfies Job);
      costs.push(((cpu().gateway - before) / answer.operations) * 1000);
      ours.push(answer);
    }
    const middle = (answers: readonly Answer[], figure: "perSecond" | "p50" | "p99"): number =>
      median(answers.map((answer) => answer[figure]));
    stage.report(
      judge(
        {
          id: `gateway/${method}`,
          what: `${NAMES[method]}, ${CLIENTS} clients`,
          measured: middle(ours, "perSecond"),
          unit: "/s",
          reference: { what: `bare node:http2, ${bytes} bytes`, value: middle(reference, "perSecond") },
          details: { p50: middle(ours, "p50"), p99: middle(ours, "p99"), "gateway CPU each, µs": median(costs) },
        },
        { text: `≥ ${BUDGETS[method].toLocaleString("en")}`, atLeast: BUDGETS[method] },
      ),
    );
  }
  await Promise.all(sandboxes.map((created) => created.delete()));
}

class BareServer implements AsyncDisposable {
  readonly socket: string;
  readonly #child: ReturnType<typeof spawn>;

  private constructor(socket: string, child: ReturnType<typeof spawn>) {
    this.socket = socket;
    this.#child = child;
  }

  static async start(socket: string, bytes: number): Promise<BareServer> {
    const file = join(import.meta.dirname, "../workers/h2-server.ts");
    const child = spawn(process.execPath, [file, socket, String(bytes)], { stdio: ["ignore", "pipe", "inherit"] });
    await once(child.stdout!, "data");
    return new BareServer(socket, child);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill();
    await once(this.#child, "exit");
  }
}

async function answerBytes(socket: string, method: Method, sandbox: string): Promise<number> {
  using client = new GrpcClient(socket);
  const workspaceScope = { selection: { case: "workspace", value: "default" } } as const;
  const { health, getSandbox, listSandboxes } = OpenShell.method;
  if (method === "health") return encode(health.output, await client.unary(health, {})).length;
  if (method === "getSandbox")
    return encode(getSandbox.output, await client.unary(getSandbox, { workspaceScope, name: sandbox })).length;
  return encode(listSandboxes.output, await client.unary(listSandboxes, { workspaceScope })).length;
}

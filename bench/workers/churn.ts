import { fromBinary } from "@bufbuild/protobuf";
import { DeletionOutcome, ExecSandboxEventSchema, OpenShell, SandboxPhase } from "@openshell/api";
import { encode, GrpcClient, pathOf } from "../support/grpc.ts";
import { loop, type Summary, summarise } from "../support/statistics.ts";
import { serveJobs } from "./jobs.ts";

/** Clients that create a sandbox, run one command in it and delete it, again and again. */

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;

export interface ChurnJob {
  readonly socket: string;
  readonly clients: number;
  readonly sandboxes: number;
  /** Of every sandbox; must not have been used before. */
  readonly prefix: string;
}

export const STEPS = ["create", "exec", "delete"] as const;
export type Step = (typeof STEPS)[number];

export interface ChurnAnswer extends Summary {
  /** Each step; `create` lasts until the sandbox is READY, `delete` until it is gone. */
  readonly steps: Readonly<Record<Step, Summary>>;
  /** What went otherwise than it should, the first of them; empty when all went well. */
  readonly failures: readonly string[];
  readonly failed: number;
}

const KEPT_FAILURES = 5;

async function create(client: GrpcClient, name: string): Promise<void> {
  await client.unary(OpenShell.method.createSandbox, {
    workspaceScope: SCOPE,
    name,
    spec: { command: ["sleep", "86400"] },
  });
  let phase: SandboxPhase | undefined;
  let why = "";
  await client.stream(
    OpenShell.method.watchSandbox,
    { workspaceScope: SCOPE, sandbox: name, followStatus: true, stopOnTerminal: true },
    ({ payload }) => {
      if (payload.case !== "sandbox") return;
      phase = payload.value.status?.phase ?? phase;
      why = (payload.value.status?.conditions ?? []).map(({ reason, message }) => `${reason} ${message}`).join("; ");
    },
  );
  if (phase !== (SandboxPhase.READY as SandboxPhase)) throw new Error(`${name} is ${SandboxPhase[phase ?? 0]}: ${why}`);
}

/** Prints a line and exits with a code of its own, both compared. */
async function exec(client: GrpcClient, name: string, code: number): Promise<void> {
  const method = OpenShell.method.execSandbox;
  const command = ["/bin/sh", "-c", `echo ${name}; exit ${code}`];
  const request = encode(method.input, { workspaceScope: SCOPE, sandbox: name, command, noLoginShell: true });
  let output = "";
  let exit: number | undefined;
  await client.raw(pathOf(method), request, (bytes) => {
    const { payload } = fromBinary(ExecSandboxEventSchema, bytes);
    if (payload.case === "exit") exit = payload.value.exitCode;
    else if (payload.case === "stdout") output += Buffer.from(payload.value.data).toString();
  });
  if (output !== `${name}\n` || exit !== code)
    throw new Error(`a command in ${name}: exit ${exit} in place of ${code}, output ${JSON.stringify(output)}`);
}

async function remove(client: GrpcClient, name: string): Promise<void> {
  const { outcome } = await client.unary(OpenShell.method.deleteSandbox, { workspaceScope: SCOPE, name });
  if (outcome !== DeletionOutcome.COMPLETED) throw new Error(`${name}: deletion ${DeletionOutcome[outcome]}`);
}

async function churn(job: ChurnJob): Promise<ChurnAnswer> {
  const clients = Array.from({ length: job.clients }, () => new GrpcClient(job.socket));
  const times: Record<Step, number[]> = { create: [], exec: [], delete: [] };
  const timed = async (step: Step, work: Promise<void>): Promise<void> => {
    const begin = performance.now();
    await work;
    times[step].push(performance.now() - begin);
  };
  const failures: string[] = [];
  let next = 0;
  const series = await loop(job.clients, { count: job.sandboxes }, async (index) => {
    const number = next++;
    const name = `${job.prefix}-${number}`;
    const client = clients[index]!;
    try {
      await timed("create", create(client, name));
      await timed("exec", exec(client, name, number % 256));
    } catch (error) {
      failures.push(error instanceof Error ? error.message : String(error));
    }
    await timed("delete", remove(client, name)).catch((error) => failures.push(String(error)));
  });
  for (const client of clients) client[Symbol.dispose]();
  const summary = (step: Step): Summary => summarise({ times: times[step], totalMs: series.totalMs });
  return {
    ...summarise(series),
    steps: { create: summary("create"), exec: summary("exec"), delete: summary("delete") },
    failures: failures.slice(0, KEPT_FAILURES),
    failed: failures.length,
  };
}

serveJobs(churn);

import { spawn } from "node:child_process";
import { fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, OpenShell } from "@openshell/api";
import { encode, GrpcClient, pathOf } from "../support/grpc.ts";
import { loop, type Series, type Summary, summarise } from "../support/statistics.ts";
import { serveJobs } from "./jobs.ts";

/** Clients of the gateway's API, and the same commands started directly, in a process of their own. */

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;

export type Job =
  /** `clients` callers, each with a connection of its own, run `sh -c 'exit N'` with codes of every kind. */
  | {
      readonly kind: "exec";
      readonly socket: string;
      readonly sandbox: string;
      readonly clients: number;
      readonly seconds: number;
    }
  /** The same commands without a sandbox. */
  | { readonly kind: "spawn"; readonly clients: number; readonly seconds: number }
  /** `bytes` of output of one command. */
  | { readonly kind: "output"; readonly socket: string; readonly sandbox: string; readonly bytes: number }
  | { readonly kind: "spawn-output"; readonly bytes: number }
  | {
      readonly kind: "unary";
      readonly socket: string;
      readonly method: "health" | "getSandbox" | "listSandboxes";
      readonly sandbox: string;
      readonly clients: number;
      readonly seconds: number;
    };

export interface Answer extends Summary {
  /** Exit codes that were not what the command gave, and calls that failed. */
  readonly wrong: number;
  readonly failed: number;
  readonly megabytesPerSecond: number;
  /** Calls including those before the measurement: what the server's CPU time was spent on. */
  readonly operations: number;
}

function answer(series: Series, more: Partial<Answer>): Answer {
  const none = { wrong: 0, failed: 0, megabytesPerSecond: 0, operations: series.times.length };
  return { ...summarise(series), ...none, ...more };
}

let nextCode = 0;

/** 0 twice in three: the code that is taken for granted. */
function someCode(): number {
  nextCode += 1;
  return nextCode % 3 === 0 ? (nextCode * 7) % 256 : 0;
}

function run(argv: readonly string[], onData?: (chunk: Buffer) => void): Promise<number | null> {
  const child = spawn(argv[0]!, argv.slice(1), { stdio: ["pipe", "pipe", "pipe"] });
  child.stdin.end();
  child.stdout.on("data", onData ?? (() => {}));
  child.stderr.resume();
  return new Promise((done, fail) => {
    child.on("error", fail);
    child.on("close", (code) => done(code));
  });
}

async function exec(
  client: GrpcClient,
  sandbox: string,
  command: readonly string[],
  onOutput?: (bytes: number) => void,
): Promise<number | undefined> {
  const method = OpenShell.method.execSandbox;
  const request = encode(method.input, {
    workspaceScope: SCOPE,
    sandbox,
    command: [...command],
    noLoginShell: true,
  });
  let code: number | undefined;
  await client.raw(pathOf(method), request, (bytes) => {
    const { payload } = fromBinary(ExecSandboxEventSchema, bytes);
    if (payload.case === "exit") code = payload.value.exitCode;
    else if (payload.case !== undefined) onOutput?.(payload.value.data.length);
  });
  return code;
}

async function execJob(job: Job & { readonly kind: "exec" }): Promise<Answer> {
  const clients = Array.from({ length: job.clients }, () => new GrpcClient(job.socket));
  let wrong = 0;
  let failed = 0;
  const step = async (index: number): Promise<void> => {
    const wanted = someCode();
    try {
      if ((await exec(clients[index]!, job.sandbox, ["/bin/sh", "-c", `exit ${wanted}`])) !== wanted) wrong += 1;
    } catch {
      failed += 1;
    }
  };
  await loop(job.clients, { count: job.clients }, step);
  const series = await loop(job.clients, { seconds: job.seconds }, step);
  for (const client of clients) client[Symbol.dispose]();
  return answer(series, { wrong, failed });
}

async function spawnJob(job: Job & { readonly kind: "spawn" }): Promise<Answer> {
  let wrong = 0;
  const series = await loop(job.clients, { seconds: job.seconds }, async () => {
    const wanted = someCode();
    if ((await run(["/bin/sh", "-c", `exit ${wanted}`])) !== wanted) wrong += 1;
  });
  return answer(series, { wrong });
}

async function outputJob(job: Job & { readonly kind: "output" | "spawn-output" }): Promise<Answer> {
  const command = ["/usr/bin/head", "-c", String(job.bytes), "/dev/zero"];
  let bytes = 0;
  const startedAt = performance.now();
  if (job.kind === "output") {
    using client = new GrpcClient(job.socket);
    await exec(client, job.sandbox, command, (length) => {
      bytes += length;
    });
  } else
    await run(command, (chunk) => {
      bytes += chunk.length;
    });
  const totalMs = performance.now() - startedAt;
  if (bytes !== job.bytes) throw new Error(`${bytes} bytes of output in place of ${job.bytes}`);
  return answer({ times: [totalMs], totalMs }, { megabytesPerSecond: bytes / totalMs / 1e3 });
}

async function unaryJob(job: Job & { readonly kind: "unary" }): Promise<Answer> {
  const clients = Array.from({ length: job.clients }, () => new GrpcClient(job.socket));
  const method = OpenShell.method[job.method];
  const request =
    job.method === "health"
      ? encode(OpenShell.method.health.input, {})
      : job.method === "getSandbox"
        ? encode(OpenShell.method.getSandbox.input, { workspaceScope: SCOPE, name: job.sandbox })
        : encode(OpenShell.method.listSandboxes.input, { workspaceScope: SCOPE });
  const step = async (index: number): Promise<void> => {
    await clients[index]!.raw(pathOf(method), request);
  };
  const before = await loop(job.clients, { count: job.clients * 20 }, step);
  const series = await loop(job.clients, { seconds: job.seconds }, step);
  for (const client of clients) client[Symbol.dispose]();
  return answer(series, { operations: before.times.length + series.times.length });
}

function work(job: Job): Promise<Answer> {
  switch (job.kind) {
    case "exec":
      return execJob(job);
    case "spawn":
      return spawnJob(job);
    case "output":
    case "spawn-output":
      return outputJob(job);
    case "unary":
      return unaryJob(job);
  }
}

serveJobs(work);

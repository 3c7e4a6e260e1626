import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { createClient } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { createLaneTransport } from "@openshell/rpc";

/**
 * Commands in the quiet neighbour's sandbox, one after the other, from "start" to "stop". A thread of its own: the
 * servers of the test internet are not in its way.
 */

export interface CommandsData {
  readonly socket: string;
  readonly sandbox: string;
}

export interface CommandsReport {
  /** Milliseconds of each. */
  readonly times: readonly number[];
  readonly failures: readonly string[];
}

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
const CALL_LIMIT_MS = 10_000;
const PAUSE_MS = 15;

const { socket, sandbox } = workerData as CommandsData;
const transport = createLaneTransport({ dial: () => net.connect(socket) });
const client = createClient(OpenShell, transport);
let stop = true;
let code = 0;

async function step(): Promise<void> {
  code = (code + 1) % 100;
  const command = ["/bin/sh", "-c", `exit ${code}`];
  let exit: number | undefined;
  const events = client.execSandbox(
    { workspaceScope: SCOPE, sandbox, command, noLoginShell: true },
    { timeoutMs: CALL_LIMIT_MS },
  );
  for await (const { payload } of events) if (payload.case === "exit") exit = payload.value.exitCode;
  if (exit !== code) throw new Error(`exit code ${exit} in place of ${code}`);
}

async function run(): Promise<void> {
  const times: number[] = [];
  const failures: string[] = [];
  while (!stop) {
    const begin = performance.now();
    await step().catch((error: unknown) => failures.push(`command: ${error}`));
    times.push(performance.now() - begin);
    await sleep(PAUSE_MS);
  }
  parentPort!.postMessage({ times, failures } satisfies CommandsReport);
}

parentPort!.on("message", (message: "start" | "stop") => {
  stop = message === "stop";
  if (message === "start") void run();
});

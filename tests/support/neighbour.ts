import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { parentPort } from "node:worker_threads";
import { createClient } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { createLaneTransport } from "@openshell/rpc";

/**
 * Somebody else who uses a gateway while it is under attack: a thread of its own, so that the attacker's work is not in
 * its way. Calls from "start" with the path of a users' socket until "stop", and then reports.
 */

export interface NeighbourReport {
  /** Of each call, in order. Milliseconds. */
  readonly latencies: readonly number[];
  readonly failures: readonly string[];
}

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
const CALL_LIMIT_MS = 20_000;
const PAUSE_MS = 10;

let stop = false;

async function run(path: string): Promise<void> {
  const latencies: number[] = [];
  const failures: string[] = [];
  await using transport = createLaneTransport({ dial: () => net.connect(path) });
  const client = createClient(OpenShell, transport);
  do {
    const startedAt = performance.now();
    try {
      await client.listSandboxes({ workspaceScope: SCOPE }, { timeoutMs: CALL_LIMIT_MS });
    } catch (error) {
      failures.push(String(error));
    }
    latencies.push(performance.now() - startedAt);
    await sleep(PAUSE_MS);
  } while (!stop);
  parentPort!.postMessage({ latencies, failures } satisfies NeighbourReport);
}

parentPort!.on("message", (message: { readonly start: string } | "stop") => {
  stop = message === "stop";
  if (message !== "stop") void run(message.start);
});

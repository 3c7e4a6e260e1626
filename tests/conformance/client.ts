import { create } from "@bufbuild/protobuf";
import { Calls } from "./call.ts";
import { implementationNamed } from "./implementation.ts";
import { type ClientCompatRequest, frame, loadMessages, unframe } from "./messages.ts";

/**
 * The client under test: `node client.ts IMPLEMENTATION`, started by the suite's runner, which writes the calls to make
 * to standard input and reads their outcomes from standard output, in any order, until both end.
 */

/** Calls at once. The runner keeps the client busy; most time is spent waiting for delays that test cases ask for. */
const PARALLEL = 32;

const messages = loadMessages();
const response = messages.message("ClientCompatResponse");
using calls = new Calls(messages, implementationNamed(process.argv[2]));
const running = new Set<Promise<void>>();

async function run(request: ClientCompatRequest): Promise<void> {
  const { testName } = request;
  const result = await calls.make(request).then(
    (value) => ({ case: "response", value }),
    (error) => ({ case: "error", value: { message: String(error instanceof Error ? error.stack : error) } }),
  );
  process.stdout.write(frame(response, create(response, { testName, result } as Record<string, unknown>)));
}

process.once("SIGTERM", () => process.exit(0));
for await (const message of unframe(messages.message("ClientCompatRequest"), process.stdin)) {
  const call: Promise<void> = run(message as ClientCompatRequest).finally(() => running.delete(call));
  running.add(call);
  if (running.size >= PARALLEL) await Promise.race(running);
}
await Promise.all(running);

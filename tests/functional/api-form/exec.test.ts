import { randomUUID } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import type { ExecSandboxEvent, ExecSandboxInput } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { afterAll, beforeAll, expect, test } from "vitest";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { GatewayProcess } from "../gateway/gateway-process.ts";
import { createReady, type OpenShellClient, untilGone, workspaceScope } from "../gateway/sandboxes.ts";

/** What the fields of ExecSandboxRequest do to a real process. */

const MiB = 1024 * 1024;

let before: Inventory;
let gateway: GatewayProcess;
let client: OpenShellClient;

beforeAll(async () => {
  before = takeInventory();
  gateway = new GatewayProcess();
  await gateway.started();
  client = gateway.local();
  await createReady(client, "box");
});

afterAll(async () => {
  if (client !== undefined) {
    await client.deleteSandbox({ workspaceScope, name: "box" });
    await untilGone(client, "box");
    await gateway.end();
  }
  await gateway?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

interface Result {
  readonly out: string;
  readonly err: string;
  readonly code: number | undefined;
  /** Kinds of the events, in order, each kind once in a row. */
  readonly order: readonly string[];
}

async function collect(events: AsyncIterable<ExecSandboxEvent>): Promise<Result> {
  const out: Uint8Array[] = [];
  const err: Uint8Array[] = [];
  const order: string[] = [];
  let code: number | undefined;
  for await (const { payload } of events) {
    if (order.at(-1) !== payload.case) order.push(payload.case!);
    if (payload.case === "stdout") out.push(payload.value.data);
    else if (payload.case === "stderr") err.push(payload.value.data);
    else if (payload.case === "exit") code = payload.value.exitCode;
  }
  return { out: Buffer.concat(out).toString(), err: Buffer.concat(err).toString(), code, order };
}

const exec = (script: string, request: object = {}) =>
  collect(
    client.execSandbox({
      workspaceScope,
      sandbox: "box",
      command: ["/bin/sh", "-c", script],
      noLoginShell: true,
      ...request,
    }),
  );

/** Sends the start, then what `input` yields, and half-closes. */
function interactive(start: object, input: () => AsyncIterable<object> = async function* () {}) {
  const first = { workspaceScope, sandbox: "box", noLoginShell: true, ...start };
  const messages = async function* (): AsyncGenerator<ExecSandboxInput> {
    yield { payload: { case: "start", value: first } } as unknown as ExecSandboxInput;
    for await (const payload of input()) yield { payload } as unknown as ExecSandboxInput;
  };
  return collect(client.execSandboxInteractive(messages()));
}

const failure = async (call: Promise<unknown>) => {
  const error = await call.then(
    () => {
      throw new Error("the command ran");
    },
    (thrown: unknown) => ConnectError.from(thrown),
  );
  const { reason, violations } = readErrorDetails(error);
  return { code: error.code, reason, fields: violations.map(({ field }) => field), message: error.rawMessage };
};

test("no_login_shell keeps a noisy profile out; without it the profile is read", async () => {
  await exec(`for f in .profile .bash_profile; do echo 'echo noise; export FROM_PROFILE=1' > ~/$f; done`);
  const plain = { command: ["/bin/sh", "-c", "echo own $FROM_PROFILE"], noLoginShell: false };
  expect((await exec("", plain)).out).toBe("noise\nown 1\n");
  expect((await exec("", { ...plain, noLoginShell: true })).out).toBe("own\n");
  await exec("rm ~/.profile ~/.bash_profile");
});

test("exit comes last; codes are exact, a signal is 128 + its number", async () => {
  for (const [script, code] of [
    ["exit 0", 0],
    ["exit 1", 1],
    ["exit 255", 255],
    ["kill -TERM $$", 143],
    ["kill -KILL $$", 137],
  ] as const) {
    const result = await exec(`echo out; echo err >&2; ${script}`);
    expect([script, result.code, result.out, result.err]).toEqual([script, code, "out\n", "err\n"]);
    expect(result.order.at(-1)).toBe("exit");
  }
});

test("5 MiB of output arrive whole", async () => {
  const { out, code } = await exec(`head -c ${5 * MiB} /dev/zero | tr '\\0' x`);
  expect([out.length, code]).toEqual([5 * MiB, 0]);
  expect(out).toBe("x".repeat(5 * MiB));
});

test("stdin is given whole, then ends; what nobody reads is no error", async () => {
  const stdin = Buffer.alloc(3 * MiB, "y");
  expect((await exec("wc -c", { stdin })).out.trim()).toBe(String(3 * MiB));
  expect(await exec("exit 4", { stdin })).toMatchObject({ code: 4 });
  expect((await exec("cat", {})).out).toBe("");
});

test("the caller's half-close is the end of input, not of the command", async () => {
  const input = async function* () {
    yield { case: "stdin", value: Buffer.from("two ") };
    yield { case: "stdin", value: Buffer.from("three") };
  };
  const start = { command: ["/bin/sh", "-c", "cat; sleep 0.2; echo; echo after"], stdin: Buffer.from("one ") };
  expect(await interactive(start, input)).toMatchObject({ out: "one two three\nafter\n", code: 0 });
});

test("a command may end before its input; the exit and the status come all the same", async () => {
  const input = async function* () {
    for (let index = 0; index < 50; index++) yield { case: "stdin", value: Buffer.alloc(64 * 1024) };
  };
  expect(await interactive({ command: ["/bin/sh", "-c", "exit 9"] }, input)).toMatchObject({ code: 9 });
});

test("a terminal is 80 by 24 unless told; a resize reaches it", async () => {
  expect((await exec("stty size", { tty: true })).out.trim()).toBe("24 80");
  expect((await exec("stty size", { tty: true, rows: 50, cols: 132 })).out.trim()).toBe("50 132");
  const input = async function* () {
    yield { case: "resize", value: { rows: 33, cols: 111 } };
    yield { case: "stdin", value: Buffer.from("go\n") };
  };
  const start = { command: ["/bin/sh", "-c", "stty -echo; read x; stty size"], tty: true };
  expect((await interactive(start, input)).out).toContain("33 111");
});

test("execution_timeout ends the command with 124, 0 s at once; a command's own 124 is its own", async () => {
  const begun = performance.now();
  expect((await exec("sleep 60", { executionTimeout: { seconds: 0n, nanos: 300_000_000 } })).code).toBe(124);
  expect(performance.now() - begun).toBeLessThan(20_000);
  expect((await exec("sleep 60", { executionTimeout: { seconds: 0n, nanos: 0 } })).code).toBe(124);
  expect((await exec("exit 124")).code).toBe(124);
});

test("the pickled function of the Python SDK passes, other reserved names and long values do not", async () => {
  const value = "A".repeat(28 * 1024);
  const script = "printf %s $OPENSHELL_PYFUNC_B64 | wc -c";
  expect((await exec(script, { environment: { OPENSHELL_PYFUNC_B64: value } })).out.trim()).toBe(String(value.length));
  for (const environment of [
    { OPENSHELL_OTHER: "1" },
    { BIG: "x".repeat(32 * 1024 + 1) },
    { "A-B": "1" },
    { A: "a\nb" },
  ]) {
    const { code, fields } = await failure(exec("true", { environment }));
    expect([code, fields]).toEqual([Code.InvalidArgument, [`environment[${Object.keys(environment)[0]}]`]]);
  }
});

test("workdir is where the command starts; one that does not exist is told", async () => {
  expect((await exec("pwd", { workdir: "/usr" })).out).toBe("/usr\n");
  const { code, message } = await failure(exec("pwd", { workdir: "/does/not/exist" }));
  expect([Code.FailedPrecondition, Code.InvalidArgument]).toContain(code);
  expect(message).toContain("/does/not/exist");
});

test("limits are refused by field", async () => {
  for (const [request, field] of [
    [{ command: [] }, "command"],
    [{ command: [""] }, "command"],
    [{ command: Array(1025).fill("x") }, "command"],
    [{ command: ["x".repeat(32 * 1024 + 1)] }, "command[0]"],
    [{ command: ["a\0b"] }, "command[0]"],
    [{ workdir: `/${"x".repeat(4096)}` }, "workdir"],
    [{ tty: true, rows: 65_536 }, "rows"],
    [{ tty: true, cols: 4_294_967_295 }, "cols"],
    [{ executionTimeout: { seconds: -1n, nanos: 0 } }, "execution_timeout"],
    [{ executionTimeout: { seconds: 366n * 86_400n, nanos: 0 } }, "execution_timeout"],
  ] as const) {
    const { code, fields } = await failure(exec("true", request));
    expect([code, fields]).toEqual([Code.InvalidArgument, [field]]);
    const inStart = await failure(interactive({ command: ["true"], ...request }));
    expect([inStart.code, inStart.fields]).toEqual([Code.InvalidArgument, [`start.${field}`]]);
  }
});

test("a request id starts one command: it runs, it has ended, it ended by its limit, its sandbox was replaced", async () => {
  const once = (script: string, requestId: string, more: object = {}) =>
    exec(`echo x >> ~/runs; ${script}`, { requestId, ...more });
  const runs = async (): Promise<number> => (await exec("cat ~/runs 2>/dev/null")).out.split("\n").length - 1;
  const running = randomUUID();
  const stop = new AbortController();
  const command = ["/bin/sh", "-c", "echo x >> ~/runs; echo started; sleep 60"];
  const stream = client
    .execSandbox(
      { workspaceScope, sandbox: "box", command, noLoginShell: true, requestId: running },
      { signal: stop.signal },
    )
    [Symbol.asyncIterator]();
  await stream.next();
  const repeat = { workspaceScope, sandbox: "box", command, noLoginShell: true, requestId: running.toUpperCase() };
  expect((await failure(collect(client.execSandbox(repeat)))).reason).toBe("REQUEST_OUTCOME_UNCERTAIN");
  stop.abort();
  await stream.next().catch(() => {});
  expect((await failure(collect(client.execSandbox(repeat)))).reason).toBe("REQUEST_OUTCOME_UNCERTAIN");
  const ended = randomUUID();
  expect((await once("exit 3", ended)).code).toBe(3);
  expect((await failure(once("exit 3", ended))).reason).toBe("REQUEST_STREAM_UNAVAILABLE");
  expect((await failure(once("exit 4", ended))).reason).toBe("REQUEST_ID_PAYLOAD_MISMATCH");
  const limit = { executionTimeout: { seconds: 0n, nanos: 200_000_000 } };
  const limited = randomUUID();
  expect((await once("sleep 60", limited, limit)).code).toBe(124);
  expect((await failure(once("sleep 60", limited, limit))).reason).toBe("REQUEST_OUTCOME_UNCERTAIN");
  expect(await runs()).toBe(3);
  await client.deleteSandbox({ workspaceScope, name: "box" });
  await untilGone(client, "box");
  expect(await failure(once("exit 3", ended))).toMatchObject({ code: Code.NotFound, message: "sandbox not found" });
  await createReady(client, "box");
  expect((await failure(once("exit 3", ended))).reason).toBe("REQUEST_REPLAY_UNAVAILABLE");
  expect(await runs()).toBe(0);
});

test("a sandbox that does not run is FAILED_PRECONDITION, saying what to do", async () => {
  await client.stopSandbox({ workspaceScope, name: "box" });
  const stopped = await failure(exec("true"));
  expect([stopped.code, stopped.message]).toEqual([
    Code.FailedPrecondition,
    expect.stringMatching(/phase STOPPED.*\. Start it first$/),
  ]);
});

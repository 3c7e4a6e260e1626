import type { ServerHttp2Stream } from "node:http2";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, ExecSandboxInputSchema } from "@openshell/api/generated/openshell_pb.js";
import { type Frame, FrameReader } from "@openshell/rpc/wire/frame.ts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { envelope, FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";
import { inFolder, mountedWorkdir } from "./run.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  gateway.answers.set("CreateSandbox", (message) => ({
    message: { sandbox: { metadata: { name: message["name"] }, status: { phase: "SANDBOX_PHASE_PROVISIONING" } } },
  }));
  gateway.answers.set("DeleteSandbox", { message: { outcome: "DELETION_OUTCOME_COMPLETED" } });
});
afterEach(() => gateway[Symbol.asyncDispose]());

const event = (payload: Parameters<typeof create<typeof ExecSandboxEventSchema>>[1]) =>
  envelope(toBinary(ExecSandboxEventSchema, create(ExecSandboxEventSchema, payload)), 0);
const output = (kind: "stdout" | "stderr", text: string) =>
  event({ payload: { case: kind, value: { data: Buffer.from(text) } } });
const exit = (exitCode: number) => event({ payload: { case: "exit", value: { exitCode } } });

/** Answers an attachment with these frames once the input has ended; gives what arrived. */
function serve(frames: readonly Buffer[]): { headers: Record<string, unknown>; messages: unknown[] } {
  const seen = { headers: {} as Record<string, unknown>, messages: [] as unknown[] };
  gateway.onStream = (stream: ServerHttp2Stream, headers) => {
    seen.headers = headers;
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    const reader = new FrameReader();
    stream.on("data", (chunk: Buffer) => {
      const frames: Frame[] = [];
      reader.push(chunk, frames);
      for (const { data } of frames) seen.messages.push(fromBinary(ExecSandboxInputSchema, data).payload);
    });
    stream.on("end", () => {
      for (const frame of frames) stream.write(frame);
      stream.end();
    });
  };
  return seen;
}

const run = (argv: string[], options: Parameters<typeof runCommandLine>[1] = {}) =>
  runCommandLine(["run", ...argv], { ...options, env: { ...gateway.env, ...options.env } });
const methods = (): string[] => gateway.calls.map((call) => call.method);

test("creates, attaches, passes both ways, removes, and ends with the command's status", async () => {
  const seen = serve([output("stdout", "out"), output("stderr", "err"), output("stdout", "more"), exit(7)]);
  const result = await run(["--", "cmd", "arg"], { stdin: "typed" });
  expect(result).toEqual({ code: 7, stdout: "outmore", stderr: "err" });
  expect(methods()).toEqual(["CreateSandbox", "GetSandboxLogs", "DeleteSandbox"]);
  const name = gateway.calls[0]?.message["name"] as string;
  expect(name).toMatch(/^run-[a-z0-9]{10}$/);
  expect(gateway.calls[2]?.message).toMatchObject({ name, allowMissing: true });
  expect(seen.headers["openshell-attach"]).toBe("main-process");
  const [start, stdin] = seen.messages as [unknown, { case: string; value: Uint8Array }];
  expect(start).toMatchObject({ case: "start", value: { sandbox: name, command: [] } });
  expect([stdin.case, Buffer.from(stdin.value).toString()]).toEqual(["stdin", "typed"]);
});

test("--keep leaves the sandbox and says so", async () => {
  serve([exit(0)]);
  const result = await run(["--keep", "--name", "mine", "true"]);
  expect(result).toMatchObject({ code: 0, stderr: expect.stringContaining("openshell sandbox delete mine") });
  expect(methods()).toEqual(["CreateSandbox"]);
});

test("an attachment that fails is an error, and the sandbox is removed all the same", async () => {
  gateway.onStream = (stream) =>
    stream.respond(
      { ":status": 200, "content-type": "application/grpc", "grpc-status": "9", "grpc-message": "it does not run" },
      { endStream: true },
    );
  expect(await run(["--", "x"])).toMatchObject({
    code: 1,
    stdout: "",
    stderr:
      "error: it does not run\n  next: Look at the state: `openshell sandbox get NAME`\n  code: failed_precondition\n",
  });
  expect(methods()).toEqual(["CreateSandbox", "DeleteSandbox"]);
});

test("an end without a status is an error, never a status", async () => {
  serve([output("stdout", "half")]);
  const result = await run(["--", "x"]);
  expect(result).toMatchObject({ code: 1, stdout: "half" });
  expect(result.stderr).toContain("without telling its status");
});

test("a refused creation removes nothing: the name may be somebody else's", async () => {
  gateway.answers.set("CreateSandbox", { error: { code: "already_exists", message: "it exists" }, status: 409 });
  expect(await run(["--name", "theirs", "--", "x"])).toMatchObject({ code: 1 });
  gateway.answers.set("CreateSandbox", { raw: "", status: 502 });
  expect(await run(["--name", "theirs", "--", "x"])).toMatchObject({ code: 1 });
  expect(methods()).toEqual(["CreateSandbox", "CreateSandbox"]);
  // Under a name of our own a lost answer may have left a sandbox behind.
  expect(await run(["--", "x"])).toMatchObject({ code: 1 });
  expect(methods()).toEqual(["CreateSandbox", "CreateSandbox", "CreateSandbox", "DeleteSandbox"]);
});

test("a program that cannot be started inside ends with 127 or 126 as in a shell", async () => {
  const fail = (message: string): void => {
    gateway.onStream = (stream) =>
      stream.respond(
        { ":status": 200, "content-type": "application/grpc", "grpc-status": "9", "grpc-message": message },
        { endStream: true },
      );
  };
  fail("does not run: exec: ENOENT: no such file or directory");
  expect(await run(["--", "nosuch"])).toMatchObject({
    code: 127,
    stderr: expect.stringContaining("nosuch does not exist in the sandbox"),
  });
  fail("does not run: exec: EACCES: permission denied");
  expect(await run(["--", "/etc/passwd"])).toMatchObject({ code: 126 });
});

test("a limit that the gateway cannot hold is told before the start; others are not spoken of", async () => {
  const answer = (memory: object | undefined) => {
    const driver = { name: "local", capabilities: { resourceCapabilities: { memory, cpu: { limitSupported: true } } } };
    gateway.answers.set("GetGatewayInfo", { message: { computeDrivers: [driver] } as never });
  };
  serve([exit(0)]);
  const limited = async () => (await run(["--memory", "64Mi", "--cpu", "1", "--", "x"])).stderr;
  answer({});
  expect(await limited()).toBe(
    "! --memory will not hold: this gateway cannot limit it here (an ordinary user needs a delegated control group)\n",
  );
  answer({ limitSupported: true });
  expect(await limited()).toBe("");
  answer(undefined);
  expect(await limited()).toBe("");
  gateway.answers.set("GetGatewayInfo", { error: { code: "permission_denied", message: "no" }, status: 403 });
  expect(await limited()).toBe("");
});

test("a refusal is shown although its line comes after the end of the command", async () => {
  const gatewayLine = (message: string) => ({ source: "gateway", message });
  const refusal = {
    source: "sandbox",
    message: "NET:REFUSE [MED] DENIED /usr/bin/curl(5) -> example.com:443 [policy:- engine:opa] [reason:not allowed]",
  };
  let asked = 0;
  gateway.answers.set("GetSandboxLogs", () => {
    asked += 1;
    const early = [gatewayLine("Ready: the workload runs under policy version 1")];
    const late = [...early, refusal, gatewayLine("MainProcessCompleted: the main process exited with code 0")];
    return { message: { logs: asked < 3 ? early : late } };
  });
  serve([exit(0)]);
  const { stderr } = await run(["--no-tty", "--", "x"], { columns: 100, env: { NO_COLOR: "1" } });
  expect(stderr).toContain("the policy refused once:\n  /usr/bin/curl -> example.com:443: not allowed\n");
  expect(asked).toBe(3);
});

test("without a terminal a refusal is told when the command failed, and on one it begins a line of its own", async () => {
  const message =
    "NET:REFUSE [MED] DENIED /usr/bin/git(5) -> git.example.com:443 [policy:- engine:opa] [reason:not allowed]";
  const ended = { source: "gateway", message: "MainProcessFailed: the main process exited with code 128" };
  gateway.answers.set("GetSandboxLogs", { message: { logs: [{ source: "sandbox", message }, ended] } });
  const told = "openshell: the policy refused once:\n  /usr/bin/git -> git.example.com:443: not allowed\n";
  serve([output("stderr", "fatal: 403\n"), exit(128)]);
  expect(await run(["--", "git"])).toEqual({ code: 128, stdout: "", stderr: `fatal: 403\n${told}` });
  serve([exit(0)]);
  expect(await run(["--", "git"])).toEqual({ code: 0, stdout: "", stderr: "" });
  serve([output("stdout", "half a line"), exit(0)]);
  const onTerminal = await run(["--no-tty", "--", "git"], { columns: 100, env: { NO_COLOR: "1" } });
  expect(onTerminal.stderr).toMatch(/own home.*\n\nopenshell: the policy refused once:\n/);
});

test("the status stays the command's own when the sandbox cannot be removed, which is said", async () => {
  gateway.answers.set("DeleteSandbox", {
    error: { code: "resource_exhausted", message: "the disk is full" },
    status: 429,
  });
  serve([exit(0)]);
  const result = await run(["--name", "mine", "--", "x"]);
  expect(result).toMatchObject({
    code: 0,
    stderr: expect.stringContaining("! sandbox mine could not be removed: the disk is full"),
  });
  expect(result.stderr).toContain("`openshell sandbox delete mine` tries again");
});

test("what a sandbox planted in a writable volume is told after the command, before the sandbox goes", async () => {
  serve([exit(0)]);
  let conditions: object[] = [
    { type: "VolumeStartupFiles", status: "False", message: "HIGH: /p/.envrc\u001b[31m (direnv)" },
  ];
  gateway.answers.set("GetSandbox", (message) => ({
    message: { sandbox: { metadata: { name: message["name"] }, status: { conditions } } },
  }));
  const at = async (volume: string) => await run(["--volume", volume, "--", "x"]);
  expect(await at("/p:/work")).toMatchObject({ code: 0, stderr: "openshell: HIGH: /p/.envrc\\x1b[31m (direnv)\n" });
  expect(methods()).toEqual(["CreateSandbox", "GetSandbox", "DeleteSandbox"]);
  conditions = [];
  expect((await at("/p:/work")).stderr).toBe("");
  gateway.answers.set("GetSandbox", { error: { code: "unavailable", message: "no" }, status: 503 });
  expect(await at("/p:/work")).toMatchObject({ code: 0, stderr: "" });
});

test("who waits for a sandbox to start is told that the start is held", async () => {
  const conditions = [{ type: "Ready", status: "False", reason: "ConfigurationInvalid", message: "no such field" }];
  const held = { metadata: { name: "dev" }, status: { phase: "SANDBOX_PHASE_PROVISIONING", conditions } };
  gateway.streams.set("WatchSandbox", [{ sandbox: held }, { sandbox: held }]);
  gateway.onStream = (stream: ServerHttp2Stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.resume();
    setTimeout(() => stream.end(exit(0)), 1_500);
  };
  const create = ["sandbox", "create", "--name", "dev", "--", "cmd"];
  const { code, stderr } = await runCommandLine(create, { env: gateway.env });
  expect(code).toBe(0);
  expect(stderr.match(/^! sandbox dev is held, and nothing in it runs: no such field$/gm)).toHaveLength(1);
});

test("without a command, a login shell has a terminal when its input is one", async () => {
  const sent = async (...options: Parameters<typeof run>): Promise<unknown> => {
    serve([exit(0)]);
    await run(...options);
    return gateway.calls.findLast(({ method }) => method === "CreateSandbox")?.message["spec"];
  };
  const shell = ["/bin/sh", "-c", expect.stringContaining("exec /bin/bash -l")];
  expect(await sent([], { stdin: "echo hi\n" })).toMatchObject({ command: shell, tty: false });
  expect(await sent([], { stdin: "echo hi\n", columns: 80 })).toMatchObject({ command: shell, tty: false });
  expect(await sent(["--no-tty"], { interactive: true, columns: 80 })).toMatchObject({ command: shell, tty: false });
  expect(await sent([], { interactive: true })).toMatchObject({ command: [], tty: true });
  expect(await sent(["--tty"])).toMatchObject({ command: [], tty: true });
  expect(await sent(["--", "cat"], { interactive: true })).toMatchObject({ command: ["cat"], tty: false });
});

test("a terminal is told where the command works", async () => {
  serve([exit(0)]);
  const at = async (argv: string[]): Promise<string> =>
    (await run([...argv, "--no-tty", "--", "x"], { columns: 100, cwd: "/home/me/p", env: { NO_COLOR: "1" } })).stderr;
  expect(await at([])).toBe(
    'openshell: working in the sandbox\'s own home; the current folder is not mounted (--volume "$PWD:/work" does that)\n',
  );
  expect(await at(["--volume", "/home/me:/work"])).toBe("openshell: working in /work/p, which is the current folder\n");
});

test("the mounted current folder is where the command starts", () => {
  const volume = (source: string, target: string) => ({ source, target, access: "rw" });
  expect(mountedWorkdir("/a/b", [volume("/a/b", "/work")])).toBe("/work");
  expect(mountedWorkdir("/a/b/c", [volume("/a/b", "/work"), volume("/x", "/y")])).toBe("/work/c");
  expect(mountedWorkdir("/a/bc", [volume("/a/b", "/work")])).toBeUndefined();
  expect(mountedWorkdir("/a/b", [volume("/a", "/one"), volume("/a/b", "/two")])).toBeUndefined();
  expect(inFolder(["ls"], undefined)).toEqual(["ls"]);
  expect(inFolder([], "/work").slice(-4, -1)).toEqual(["/work", "/bin/sh", "-c"]);
});

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, ExecSandboxInputSchema } from "@openshell/api/generated/openshell_pb.js";
import { type Frame, FrameReader } from "@openshell/rpc/wire/frame.ts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { envelope, FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";
import type { Json } from "../transport/unary.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(() => gateway[Symbol.asyncDispose]());

const connect = (...argv: string[]) =>
  runCommandLine(["sandbox", "connect", "dev", ...argv], { env: gateway.env, stdin: "typed\n" });
const has = (phase: string, spec: Json = {}, status: Json = {}): void => {
  const sandbox = { metadata: { name: "dev" }, spec, status: { phase: `SANDBOX_PHASE_${phase}`, ...status } };
  gateway.answers.set("GetSandbox", { message: { sandbox } });
};
const event = (payload: Parameters<typeof create<typeof ExecSandboxEventSchema>>[1]) =>
  envelope(toBinary(ExecSandboxEventSchema, create(ExecSandboxEventSchema, payload)), 0);

/** Ends with status 7 once the input said something; gives what arrived. */
function serve() {
  const seen = { attach: "" as unknown, messages: [] as ReturnType<typeof message>[], inputEnded: false };
  const message = (data: Uint8Array) => fromBinary(ExecSandboxInputSchema, data).payload;
  gateway.onStream = (stream, headers) => {
    seen.attach = headers["openshell-attach"];
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.on("end", () => {
      seen.inputEnded = true;
    });
    const reader = new FrameReader();
    stream.on("data", (chunk: Buffer) => {
      const frames: Frame[] = [];
      reader.push(chunk, frames);
      for (const { data } of frames) seen.messages.push(message(data));
      if (seen.messages.at(-1)?.case !== "stdin") return;
      // The end of the input, if it is passed on, comes before this.
      setTimeout(() => stream.end(event({ payload: { case: "exit", value: { exitCode: 7 } } })), 50);
    });
  };
  return seen;
}
const startOf = ({ messages }: ReturnType<typeof serve>) =>
  messages[0]?.case === "start" ? messages[0].value : undefined;

test("a main process with a terminal is joined; the end of our input is not the end of its", async () => {
  has("READY", { tty: true });
  const seen = serve();
  expect((await connect()).code).toBe(7);
  expect([seen.attach, seen.inputEnded]).toEqual(["main-process", false]);
  expect(startOf(seen)).toMatchObject({ sandbox: "dev", command: [], tty: true });
  expect(seen.messages[1]).toMatchObject({ case: "stdin", value: Buffer.from("typed\n") });
});

test("otherwise a login shell is opened, with pipes where there is no terminal here", async () => {
  has("READY");
  const seen = serve();
  expect((await connect()).code).toBe(7);
  expect([seen.attach, seen.inputEnded]).toEqual([undefined, true]);
  expect(startOf(seen)).toMatchObject({
    tty: false,
    noLoginShell: true,
    command: ["/bin/sh", "-c", expect.any(String)],
  });
  has("READY", { tty: true });
  const shell = serve();
  await connect("--shell");
  expect(shell.attach).toBeUndefined();
  has("READY");
  const main = serve();
  await connect("--main");
  expect(main.attach).toBe("main-process");
  expect((await connect("--main", "--shell")).code).toBe(2);
});

test("where nothing runs it is said why, and what brings it back", async () => {
  const stopped = "Start it with `openshell sandbox start dev`";
  const conditions = [{ type: "Ready", status: "False", reason: "MainProcessFailed", message: "status 3" }];
  const cases: readonly (readonly [string, Json, string, string])[] = [
    ["STOPPED", {}, "sandbox dev is stopped", stopped],
    ["STOPPING", {}, "sandbox dev is stopping", stopped],
    ["COMPLETED", {}, "the main process of sandbox dev has ended with status 0", stopped],
    ["ERROR", { conditions }, "sandbox dev has failed (MainProcessFailed: status 3)", stopped],
    ["DELETING", {}, "sandbox dev is being removed", "Create another one"],
  ];
  for (const [phase, status, message, next] of cases) {
    has(phase, { tty: true }, status);
    const { code, stderr } = await connect();
    expect([code, stderr]).toEqual([1, expect.stringContaining(`error: ${message}\n  next: `)]);
    expect(stderr).toContain(next);
  }
});

test("one that is started again by its restart policy is waited for", async () => {
  has("PROVISIONING", { tty: true }, { nextRestartTime: "2026-03-01T12:00:00Z" });
  serve();
  expect((await connect()).code).toBe(7);
});

import { type AddressInfo, createServer, type Socket } from "node:net";
import { create, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { BadRequestSchema, ErrorInfoSchema } from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { ExecSandboxEventSchema } from "@openshell/api/generated/openshell_pb.js";
import { afterEach, beforeEach, expect, test } from "vitest";
import { envelope, FakeGateway } from "../testing/fake-gateway.ts";
import type { Endpoint } from "./endpoint.ts";
import { openConnection, openGrpcStream } from "./grpc-stream.ts";
import { streamJson } from "./json-stream.ts";
import type { RpcError } from "./rpc-error.ts";
import { callUnary } from "./unary.ts";
import { UnreachableError } from "./unreachable.ts";

let gateway: FakeGateway;
let endpoint: Endpoint;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  endpoint = { kind: "unix", path: gateway.socket };
});
afterEach(() => gateway[Symbol.asyncDispose]());

const failure = (promise: Promise<unknown>): Promise<RpcError> =>
  promise.then(
    () => {
      throw new Error("it succeeded");
    },
    (error: unknown) => error as RpcError,
  );

test("a unary call is a Connect call with JSON", async () => {
  gateway.answers.set("Health", { message: { version: "1.2.3" } });
  expect(await callUnary(endpoint, "Health", { a: 1 })).toEqual({ version: "1.2.3" });
  const [call] = gateway.calls;
  expect(call?.message).toEqual({ a: 1 });
  expect(call?.headers).toMatchObject({ "connect-protocol-version": "1", "content-type": "application/json" });
});

test("an error keeps code, message, reason and violations", async () => {
  const info = toBinary(ErrorInfoSchema, create(ErrorInfoSchema, { reason: "INVALID_ARGUMENT" }));
  const violations = [{ field: "name", description: "must not be empty" }];
  const bad = toBinary(BadRequestSchema, create(BadRequestSchema, { fieldViolations: violations }));
  const base64 = (bytes: Uint8Array): string => Buffer.from(bytes).toString("base64").replace(/=+$/, "");
  gateway.answers.set("CreateSandbox", {
    error: {
      code: "invalid_argument",
      message: "the request is invalid",
      details: [
        { type: "google.rpc.ErrorInfo", value: base64(info) },
        { type: "google.rpc.BadRequest", value: base64(bad) },
        { type: "google.rpc.Broken", value: "/////w" },
      ],
    },
  });
  const error = await failure(callUnary(endpoint, "CreateSandbox", {}));
  expect(error).toMatchObject({
    code: "invalid_argument",
    message: "the request is invalid",
    reason: "INVALID_ARGUMENT",
  });
  expect(error.violations).toEqual([expect.objectContaining(violations[0])]);
});

test("what is no gateway is told apart from a gateway's refusal", async () => {
  gateway.answers.set("Health", { raw: "<html>busy</html>", status: 503 });
  expect(await failure(callUnary(endpoint, "Health", {}))).toMatchObject({ code: "unavailable" });
  gateway.answers.set("Health", { raw: "<html>hello</html>", status: 200 });
  expect((await failure(callUnary(endpoint, "Health", {}))).message).toContain("no OpenShell gateway");
});

test("nobody there is an UnreachableError that names the place", async () => {
  const nowhere = { kind: "unix", path: `${gateway.socket}.none` } as const;
  const unary = await failure(callUnary(nowhere, "Health", {}));
  expect(unary).toBeInstanceOf(UnreachableError);
  expect(unary.message).toContain(nowhere.path);
  expect(await failure(openConnection(nowhere))).toBeInstanceOf(UnreachableError);
});

test("a call that is not answered in time ends", async () => {
  gateway.answers.set("Health", { silence: true });
  const error = await failure(callUnary(endpoint, "Health", {}, { timeoutMs: 50 }));
  expect(error).toMatchObject({ code: "deadline_exceeded" });
});

test("messages of a server stream arrive one by one, and its error is thrown", async () => {
  gateway.streams.set("WatchSandbox", [{ n: 1 }, { n: 2 }]);
  const seen: unknown[] = [];
  for await (const message of streamJson(endpoint, "WatchSandbox", { sandbox: "a" })) seen.push(message);
  expect(seen).toEqual([{ n: 1 }, { n: 2 }]);
  expect(gateway.calls[0]?.message).toEqual({ sandbox: "a" });
  gateway.streams.clear();
  const error = await failure(streamJson(endpoint, "WatchSandbox", {}).next());
  expect(error.code).toBe("unimplemented");
});

test("a gRPC stream carries bytes both ways and ends with the trailers' status", async () => {
  const bytes = toBinary(
    ExecSandboxEventSchema,
    create(ExecSandboxEventSchema, { payload: { case: "exit", value: { exitCode: 7 } } }),
  );
  let received = Buffer.alloc(0);
  gateway.onStream = (stream, headers) => {
    expect(headers).toMatchObject({ "content-type": "application/grpc+proto", te: "trailers", "x-test": "1" });
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.on("data", (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
    });
    stream.on("end", () => stream.end(envelope(bytes, 0)));
  };
  const stream = await openGrpcStream(endpoint, openConnection(endpoint), "ExecSandboxInteractive", { "x-test": "1" });
  await stream.send(Uint8Array.of(1, 2, 3));
  stream.end();
  const seen: Uint8Array[] = [];
  for await (const message of stream.messages()) seen.push(message);
  stream.close();
  expect(seen.map((item) => [...item])).toEqual([[...bytes]]);
  expect(received).toEqual(envelope(Uint8Array.of(1, 2, 3), 0));
});

test("a gRPC error keeps its details, and a lost connection is never taken for an end", async () => {
  const violation = { field: "command", description: "must name a program" };
  const status = create(StatusSchema, {
    code: 3,
    message: "100% wrong",
    details: [anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [violation] }))],
  });
  gateway.onStream = (stream) =>
    stream.respond(
      {
        ":status": 200,
        "content-type": "application/grpc+proto",
        "grpc-status": "3",
        "grpc-message": "100%25 wrong",
        "grpc-status-details-bin": Buffer.from(toBinary(StatusSchema, status)).toString("base64"),
      },
      { endStream: true },
    );
  const open = () => openGrpcStream(endpoint, openConnection(endpoint), "ExecSandboxInteractive");
  const refused = await failure((await open()).messages().next());
  expect(refused).toMatchObject({ code: "invalid_argument", message: "100% wrong" });
  expect(refused.violations).toEqual([expect.objectContaining(violation)]);

  gateway.onStream = (stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" });
    stream.write(envelope("x", 0));
    setTimeout(() => stream.session?.destroy(), 20);
  };
  const messages = (await open()).messages();
  await messages.next();
  expect(await failure(messages.next())).toMatchObject({ code: "unavailable" });

  gateway.onStream = (stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc+proto" });
    stream.end(envelope("x", 0));
  };
  const cut = (await open()).messages();
  await cut.next();
  expect(await failure(cut.next())).toMatchObject({ code: "internal" });
});

test("a gateway on the network that has vanished without a word is noticed", async () => {
  const sockets: Socket[] = [];
  // Its SETTINGS (RFC 9113 §6.5), and nothing ever again.
  const silent = createServer((socket) => {
    sockets.push(socket.on("error", () => {}).resume());
    socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
  });
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  const url = new URL(`http://127.0.0.1:${(silent.address() as AddressInfo).port}`);
  const remote: Endpoint = { kind: "tcp", url, tls: undefined };
  const connection = openConnection(remote, { intervalMs: 20, timeoutMs: 50 });
  const stream = await openGrpcStream(remote, connection, "ExecSandboxInteractive");
  expect(await failure(stream.messages().next())).toMatchObject({ code: "unavailable" });
  for (const socket of sockets) socket.destroy();
  silent.close();
});

import { mkdtempSync, rmSync } from "node:fs";
import { request } from "node:http";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, toBinary } from "@bufbuild/protobuf";
import { type Client, Code, type ConnectError, createClient } from "@connectrpc/connect";
import { ExecSandboxEventSchema, OpenShell, ServiceStatus } from "@openshell/api";
import { invalidField } from "@openshell/api/errors.ts";
import { createLaneTransport, encodedMessage, type LaneTransport } from "@openshell/rpc";
import pino from "pino";
import { afterEach, describe, expect, it } from "vitest";
import { userSocketPeer } from "../auth/identify.ts";
import { ConnectionServer } from "./connection-server.ts";
import { Dispatcher, type RpcServer } from "./dispatcher.ts";
import { type Listener, listenUnix } from "./listen.ts";
import { rpcServer } from "./rpc.ts";

const event = create(ExecSandboxEventSchema, { payload: { case: "exit", value: { exitCode: 3 } } });
const served = (): RpcServer =>
  rpcServer({
    routes: (router) =>
      router.service(OpenShell, {
        health: () => ({ status: ServiceStatus.HEALTHY, version: "1" }),
        getSandbox() {
          throw invalidField("name", "must not be empty");
        },
        getCurrentUser() {
          throw new Error("secret");
        },
        async *execSandbox() {
          yield encodedMessage(ExecSandboxEventSchema, toBinary(ExecSandboxEventSchema, event));
        },
      }),
    interceptors: [],
    log: pino({ level: "silent" }),
    stopping: new AbortController().signal,
  });

let folder: string;
let listener: Listener;
let server: ConnectionServer;
let transport: LaneTransport;

async function open(rpc: RpcServer): Promise<Client<typeof OpenShell>> {
  folder = mkdtempSync(join(tmpdir(), "openshell-rpc-"));
  const path = join(folder, "s");
  server = new ConnectionServer(new Dispatcher({ routes: [], rpc }), { streams: 100, ping: false });
  listener = await listenUnix(path, (socket) => server.accept(socket, userSocketPeer(1, undefined)));
  transport = createLaneTransport({ dial: () => connect(path) });
  return createClient(OpenShell, transport);
}

afterEach(async () => {
  await transport[Symbol.asyncDispose]();
  await listener.close();
  await server.drain(0);
  rmSync(folder, { recursive: true });
});

const failure = (promise: Promise<unknown>): Promise<ConnectError> =>
  promise.then(
    () => Promise.reject(new Error("it succeeded")),
    (error: unknown) => error as ConnectError,
  );

describe.each([
  ["the lane", (rpc: RpcServer): RpcServer => rpc],
  // The whole swap.
  ["connect-node", ({ handler }: RpcServer): RpcServer => ({ handler })],
])("the gateway's services over plain gRPC, served by %s", (_name, choose) => {
  it("answer alike: messages, errors, encoded messages", async () => {
    const client = await open(choose(served()));
    expect(await client.health({})).toMatchObject({ status: ServiceStatus.HEALTHY, version: "1" });
    expect(await failure(client.getSandbox({}))).toMatchObject({
      code: Code.InvalidArgument,
      rawMessage: "name: must not be empty",
    });
    expect((await failure(client.getCurrentUser({}))).code).toBe(Code.Internal);
    expect((await failure(client.getCurrentUser({}))).message).not.toContain("secret");
    const seen = [];
    for await (const { payload } of client.execSandbox({})) seen.push(payload);
    expect(seen).toEqual([event.payload]);
    expect((await failure(client.stopSandbox({}))).code).toBe(Code.Unimplemented);
  });
});

it("the lane is what serves plain gRPC in a gateway", async () => {
  const { lane } = served();
  const unreachable = (): never => {
    throw new Error("the handler was asked");
  };
  const client = await open({ ...(lane === undefined ? {} : { lane }), handler: unreachable });
  expect((await client.health({})).version).toBe("1");
});

describe("JSON in the Connect protocol", () => {
  const post = async (rpc: string, body: string | Uint8Array) => {
    const { status, text } = await new Promise<{ status: number; text: string }>((resolve, reject) => {
      const path = `/openshell.v1.OpenShell/${rpc}`;
      const headers = { "content-type": "application/json" };
      const call = request({ socketPath: join(folder, "s"), method: "POST", path, headers }, (response) => {
        let text = "";
        response.setEncoding("utf8").on("data", (chunk: string) => {
          text += chunk;
        });
        response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
      });
      call.once("error", reject);
      call.end(body);
    });
    return {
      http: status,
      text,
      ...(JSON.parse(text) as { code?: string; message?: string; details?: { type: string }[] }),
    };
  };

  it("that is no request is refused at its field, with details, and not repeated", async () => {
    await open(served());
    for (const body of [
      '{"provider": {"credentials": "hunter2"}}',
      '{"provider": {"type": hunter2}}',
      '{"hunter": 2}',
    ]) {
      const { http, code, details, text } = await post("CreateProvider", body);
      expect([http, code]).toEqual([400, "invalid_argument"]);
      expect(details?.map(({ type }) => type)).toContain("google.rpc.BadRequest");
      expect(text).not.toContain("hunter2");
    }
    expect(await post("Health", "{}")).toMatchObject({ http: 200 });
  });

  it("that is not UTF-8 is refused, not changed", async () => {
    await open(served());
    const body = Buffer.from('{"name": "gr\u00fcn"}', "latin1");
    expect(await post("GetSandbox", body)).toMatchObject({
      code: "invalid_argument",
      message: "request: is not UTF-8",
    });
  });
});

import { connect } from "node:net";
import { Duplex } from "node:stream";
import { setImmediate as turn } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { expect, it } from "vitest";
import { Echo } from "../testing/echo.ts";
import { Stand } from "../testing/stand.ts";
import { StatusCode } from "../wire/status.ts";
import { ClientCall, requestFields } from "./call.ts";
import { Connection } from "./connection.ts";
import { createLaneTransport } from "./transport.ts";

it("tells a reader whose messages were lost with the connection, even where the status had come", async () => {
  const message = { value: new Uint8Array(64 * 1024) };
  await using stand = await Stand.start({
    async *serverStream() {
      for (let index = 0; index < 12; index++) yield message;
    },
  });
  const connection = new Connection({ dial: () => connect(stand.port, "127.0.0.1") });
  const type = "application/grpc+proto";
  const call = new ClientCall(connection.request(requestFields(`/${Echo.typeName}/ServerStream`, type, undefined)));
  call.send(new Uint8Array());
  call.end();
  await call.messages.next();
  while (!call.ended) await turn();
  connection.close();
  let read = 1;
  const rest = async (): Promise<void> => {
    for await (const _ of call.messages) read++;
  };
  await expect(rest()).rejects.toMatchObject({ code: StatusCode.unavailable });
  expect(read).toBeGreaterThan(1);
  expect(read).toBeLessThan(12);
});

it("ends a large request at its deadline while the connection does not stand yet", async () => {
  const dial = () => Object.assign(new Duplex({ read() {}, write() {} }), { connecting: true });
  await using transport = createLaneTransport({ dial });
  const call = createClient(Echo, transport).unary({ value: new Uint8Array(1024 * 1024) }, { timeoutMs: 20 });
  const code = await call.catch((error: unknown) => ConnectError.from(error).code);
  expect(code).toBe(Code.DeadlineExceeded);
});

import { createSocket } from "node:dgram";
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { holdMessages, holdReads, releaseMessages, releaseReads } from "./hold-reads.ts";

/** Long enough for what is on its way over loopback to arrive. */
const ARRIVAL_MS = 50;

test("datagrams stay in the kernel while they are held, and are read afterwards", async () => {
  const socket = createSocket("udp4");
  const sender = createSocket("udp4");
  const got: string[] = [];
  socket.on("message", (message) => got.push(message.toString()));
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  const send = (text: string) =>
    new Promise((resolve) => sender.send(text, socket.address().port, "127.0.0.1", resolve));
  await send("before");
  await expect.poll(() => got).toEqual(["before"]);
  holdMessages(socket);
  await send("meanwhile");
  await sleep(ARRIVAL_MS);
  expect(got).toEqual(["before"]);
  releaseMessages(socket);
  await expect.poll(() => got).toEqual(["before", "meanwhile"]);
  socket.close();
  sender.close();
  await once(socket, "close");
  // A socket that is gone has nothing to hold.
  holdMessages(socket);
  releaseMessages(socket);
});

test("a connection's bytes stay in the kernel while they are held", async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = connect((server.address() as { port: number }).port, "127.0.0.1");
  const [accepted] = (await once(server, "connection")) as [Socket];
  accepted.resume();
  holdReads(accepted);
  client.write("held");
  await sleep(ARRIVAL_MS);
  expect(accepted.bytesRead).toBe(0);
  releaseReads(accepted);
  await expect.poll(() => accepted.bytesRead).toBe(4);
  client.destroy();
  accepted.destroy();
  server.close();
});

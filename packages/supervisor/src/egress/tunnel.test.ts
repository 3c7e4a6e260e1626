import { createHash } from "node:crypto";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { describe, expect, test } from "vitest";
import { BufferBudget, Deadlines } from "./channel.ts";
import { FairShares } from "./fair-share.ts";
import { DirectReader, Tunnel } from "./tunnel.ts";

/** Two connected socket pairs with a tunnel between them: agent ⇄ [client … upstream] ⇄ origin. */
async function setUp(direct: boolean, refuseFirst?: (bytes: Buffer) => boolean) {
  const [agent, client] = await pair();
  const reader = direct ? new DirectReader() : undefined;
  const [upstream, origin] = await pair(reader);
  const budget = new BufferBudget(1 << 20);
  const deadlines = new Deadlines(() => performance.now());
  const share = new FairShares().open();
  const tunnel = new Tunnel(client, upstream, { budget, deadlines, share }, refuseFirst);
  return { agent, origin, budget, tunnel, done: tunnel.run(reader) };
}

async function pair(reader?: DirectReader): Promise<[Socket, Socket]> {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const accepted = new Promise<Socket>((resolve) => server.once("connection", resolve));
  const to = { host: "127.0.0.1", port, allowHalfOpen: true };
  const near = connect(reader === undefined ? to : { ...to, onread: reader.onread });
  if (reader !== undefined) near.pause();
  const far = await accepted;
  server.close();
  for (const socket of [near, far]) socket.on("error", () => undefined);
  return [near, far];
}

function all(socket: Socket): Promise<Buffer> {
  return new Promise((resolve) => {
    const pieces: Buffer[] = [];
    socket.on("data", (piece: Buffer) => pieces.push(piece));
    socket.on("close", () => resolve(Buffer.concat(pieces)));
    socket.on("end", () => resolve(Buffer.concat(pieces)));
    socket.resume();
  });
}

describe.each([false, true])("a tunnel with direct reads: %s", (direct) => {
  test("carries bytes both ways unchanged and ends when both sides did", async () => {
    const { agent, origin, done, budget } = await setUp(direct);
    const up = Buffer.alloc(3_000_000, "up-and-away");
    const down = Buffer.alloc(5_000_000, "down-the-hill");
    const received = [all(origin), all(agent)];
    agent.end(up);
    origin.end(down);
    const [atOrigin, atAgent] = await Promise.all(received);
    const digest = (bytes: Buffer): string => createHash("sha256").update(bytes).digest("hex");
    expect(digest(atOrigin!)).toBe(digest(up));
    expect(digest(atAgent!)).toBe(digest(down));
    expect(await done).toEqual({ toUpstream: up.length, toClient: down.length });
    expect(budget.used).toBe(0);
  });

  test("a receiver that does not read stops the sender, and memory stays bounded", async () => {
    const { agent, origin, tunnel, done, budget } = await setUp(direct);
    agent.pause();
    let sent = 0;
    const piece = Buffer.alloc(1 << 20);
    for (let i = 0; i < 100; i += 1) {
      origin.write(piece);
      sent += piece.length;
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    expect(budget.used).toBeLessThan(2 << 20);
    expect(origin.writableLength).toBeGreaterThan(sent / 4);
    const reading = all(agent);
    origin.end();
    expect((await reading).length).toBe(sent);
    agent.end();
    tunnel.destroy();
    await done;
    expect(budget.used).toBe(0);
  });

  test("a break on one side is a break on the other", async () => {
    const { agent, origin, done } = await setUp(direct);
    agent.resume();
    origin.resume();
    const closed = new Promise<boolean>((resolve) => agent.on("close", resolve));
    origin.resetAndDestroy();
    await closed;
    await done;
  });
});

test("first bytes that have to be looked into end the tunnel before they go on", async () => {
  const { agent, origin, done } = await setUp(true, (bytes) => bytes[0] === 0x16);
  const received = all(origin);
  agent.write("\x16\x03\x01");
  await done;
  expect((await received).length).toBe(0);
});

test("after the server has spoken first the client says what it likes", async () => {
  const { agent, origin, tunnel, done } = await setUp(true, (bytes) => bytes[0] === 0x16);
  origin.write("220 ready\r\n");
  agent.resume();
  await new Promise((resolve) => agent.once("data", resolve));
  const got = new Promise<Buffer>((resolve) => origin.once("data", resolve));
  origin.resume();
  agent.write("\x16\x03\x01");
  expect((await got).length).toBe(3);
  tunnel.destroy();
  await done;
});

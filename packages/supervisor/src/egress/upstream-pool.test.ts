import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { parseAddress } from "./address.ts";
import { BufferBudget, Deadlines } from "./channel.ts";
import { FairShares } from "./fair-share.ts";
import { POOL_IDLE_PER_KEY, UPSTREAM_IDLE_MS } from "./limits.ts";
import { type Upstream, UpstreamPool, type UpstreamWish } from "./upstream-pool.ts";

const servers: Server[] = [];
const pools: UpstreamPool[] = [];
afterEach(() => {
  for (const pool of pools.splice(0)) pool.close();
  for (const server of servers.splice(0)) server.close();
});

async function setUp(onSocket: (socket: Socket) => void = () => undefined) {
  const accepted: Socket[] = [];
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    accepted.push(socket);
    onSocket(socket);
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const clock = { now: 0 };
  const dialled: string[] = [];
  const refuse = new Set<string>();
  const pool = new UpstreamPool(
    (address) => {
      dialled.push(address);
      return connect({ host: "127.0.0.1", port: refuse.has(address) ? 1 : port });
    },
    new BufferBudget(1 << 20),
    new Deadlines(() => clock.now),
    new FairShares().open(),
  );
  pools.push(pool);
  return { pool, clock, dialled, refuse, accepted };
}

function wish(overrides: Partial<UpstreamWish> = {}): UpstreamWish {
  return {
    host: "a.example",
    port: 80,
    addresses: [parseAddress("1.1.1.1")!],
    tls: undefined,
    credential: "",
    wanted: () => true,
    ...overrides,
  };
}

const turn = (ms = 20): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

describe("the pool", () => {
  test("gives a released connection to the next equal wish", async () => {
    const { pool, dialled } = await setUp();
    const first = await pool.acquire(wish(), UPSTREAM_IDLE_MS);
    expect(first.reused).toBe(false);
    pool.release(first);
    const second = await pool.acquire(wish(), UPSTREAM_IDLE_MS);
    expect(second).toBe(first);
    expect(second.reused).toBe(true);
    expect(dialled).toEqual(["1.1.1.1"]);
  });

  test.each<[string, Partial<UpstreamWish>]>([
    ["host", { host: "b.example" }],
    ["port", { port: 81 }],
    ["address", { addresses: [parseAddress("1.1.1.2")!] }],
    ["credential", { credential: "x" }],
  ])("never gives it to a wish with another %s", async (_, other) => {
    const { pool, dialled } = await setUp();
    pool.release(await pool.acquire(wish(), UPSTREAM_IDLE_MS));
    await pool.acquire(wish(other), UPSTREAM_IDLE_MS);
    expect(dialled).toHaveLength(2);
  });

  test("ends a connection on which the server speaks unasked", async () => {
    const { pool, accepted } = await setUp();
    pool.release(await pool.acquire(wish(), UPSTREAM_IDLE_MS));
    accepted[0]!.write("HTTP/1.1 200 OK\r\n\r\n");
    await turn();
    expect(pool.idle).toBe(0);
    expect((await pool.acquire(wish(), UPSTREAM_IDLE_MS)).reused).toBe(false);
  });

  test("forgets a connection that the server closes, and one that rested too long", async () => {
    const { pool, accepted, clock } = await setUp();
    pool.release(await pool.acquire(wish(), UPSTREAM_IDLE_MS));
    accepted[0]!.end();
    await turn();
    expect(pool.idle).toBe(0);
    pool.release(await pool.acquire(wish(), UPSTREAM_IDLE_MS));
    clock.now += 3_000;
    expect((await pool.acquire(wish(), 2_000)).reused).toBe(false);
    expect((await pool.acquire(wish(), 4_000)).reused).toBe(true);
  });

  test("does not keep one with bytes left over, nor more than its limit", async () => {
    const { pool } = await setUp((socket) => socket.write("early"));
    const early = await pool.acquire(wish(), UPSTREAM_IDLE_MS);
    await turn();
    pool.release(early);
    expect(pool.idle).toBe(0);
    const { pool: other } = await setUp();
    const many: Upstream[] = [];
    for (let i = 0; i < POOL_IDLE_PER_KEY + 3; i += 1) many.push(await other.acquire(wish(), UPSTREAM_IDLE_MS));
    for (const upstream of many) other.release(upstream);
    expect(other.idle).toBe(POOL_IDLE_PER_KEY);
    other.clear();
    expect(other.idle).toBe(0);
  });

  test("tries the addresses in order", async () => {
    const { pool, dialled, refuse } = await setUp();
    refuse.add("1.1.1.1");
    await pool.acquire(wish({ addresses: [parseAddress("1.1.1.1")!, parseAddress("1.1.1.2")!] }), UPSTREAM_IDLE_MS);
    expect(dialled).toEqual(["1.1.1.1", "1.1.1.2"]);
    refuse.add("1.1.1.2");
    const failing = pool.acquire(wish({ host: "c.example", addresses: [parseAddress("1.1.1.2")!] }), UPSTREAM_IDLE_MS);
    await expect(failing).rejects.toMatchObject({
      code: "upstream_unreachable",
      message: expect.stringContaining("ECONNREFUSED"),
    });
  });

  test("a connection used a thousand times gathers no listeners", async () => {
    const { pool } = await setUp();
    let upstream = await pool.acquire(wish(), UPSTREAM_IDLE_MS);
    const before = upstream.channel.socket.listenerCount("close");
    for (let i = 0; i < 1000; i += 1) {
      pool.release(upstream);
      upstream = await pool.acquire(wish(), UPSTREAM_IDLE_MS);
    }
    expect(upstream.channel.socket.listenerCount("close")).toBe(before);
  });
});

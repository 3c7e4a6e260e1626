import { createSocket } from "node:dgram";
import { Resolver } from "node:dns/promises";
import { closeSync, openSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, describe, expect, test } from "vitest";
import { type FairShare, FairShares } from "../fair-share.ts";
import { DNS_WAITING, SHARED_NAMES, STATE_BYTES, SYNTHETIC_BASE } from "../limits.ts";
import { TokenBucket } from "../rate.ts";
import { boundTcp, boundUdp, Fixture, readAll } from "../testing/fixture.ts";
import { parseQuery } from "./codec.ts";
import { NameTable } from "./names.ts";
import { DnsServer } from "./server.ts";

function query(name: string, type = 1, flags = 0x0100, cls = 1): Buffer {
  const header = Buffer.alloc(12);
  header.writeUInt16BE(0xabcd, 0);
  header.writeUInt16BE(flags, 2);
  header.writeUInt16BE(1, 4);
  const labels =
    name === ""
      ? []
      : name.split(".").map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label, "latin1")]));
  const tail = Buffer.alloc(5);
  tail.writeUInt16BE(type, 1);
  tail.writeUInt16BE(cls, 3);
  return Buffer.concat([header, ...labels, tail]);
}

function server(mentioned: (name: string) => boolean = () => false, perSecond = 1e9) {
  return new DnsServer(
    new NameTable(mentioned, 4096),
    new TokenBucket(perSecond, perSecond, () => 0),
    new FairShares().open(),
  );
}

describe("questions", () => {
  test("every name gets one synthetic address and keeps its letters in the answer", () => {
    const dns = server();
    const answer = dns.answer(query("Evil.Example.com"))!;
    expect(answer.readUInt16BE(0)).toBe(0xabcd);
    expect(answer.readUInt16BE(2) & 0x8f).toBe(0x80);
    expect(answer.readUInt16BE(6)).toBe(1);
    expect(answer.toString("latin1")).toContain("Evil");
    expect([...answer.subarray(-4)].slice(0, 2)).toEqual([198, 18]);
    expect(dns.answer(query("evil.example.COM"))!.subarray(-4)).toEqual(answer.subarray(-4));
  });

  test.each<[string, Buffer, number]>([
    ["AAAA", query("a.example", 28), 0],
    ["HTTPS", query("a.example", 65), 0],
    ["another class", query("a.example", 1, 0x0100, 3), 4],
    ["another operation", query("a.example", 1, 0x2800), 4],
    ["an inet_aton spelling", query("0x7f.1"), 0],
    ["the root", query(""), 0],
  ])("%s gets an answer without address", (_, message, rcode) => {
    const answer = server().answer(message)!;
    expect(answer.readUInt16BE(2) & 0xf).toBe(rcode);
    expect(answer.readUInt16BE(6)).toBe(0);
  });

  test("a response is not answered, or two servers would talk for ever", () => {
    expect(server().answer(query("a.example", 1, 0x8180))).toBeUndefined();
    expect(server().answer(Buffer.alloc(11))).toBeUndefined();
  });

  test("malformed questions are format errors", () => {
    const good = query("a.example");
    for (let length = 12; length < good.length; length += 1) {
      expect(server().answer(good.subarray(0, length))!.readUInt16BE(2) & 0xf).toBe(1);
    }
    const pointer = Buffer.concat([good.subarray(0, 12), Buffer.from([0xc0, 12, 0, 1, 0, 1])]);
    expect(parseQuery(pointer)).toMatchObject({ kind: "error", rcode: 1 });
    const dotted = Buffer.concat([
      good.subarray(0, 12),
      Buffer.from([3]),
      Buffer.from("a.b"),
      Buffer.from([0, 0, 1, 0, 1]),
    ]);
    expect(parseQuery(dotted)).toMatchObject({ kind: "error", rcode: 1 });
    const two = Buffer.from(good);
    two.writeUInt16BE(2, 4);
    expect(parseQuery(two)).toMatchObject({ kind: "error", rcode: 1 });
  });

  test("above the rate questions go unanswered", () => {
    const dns = server(undefined, 2);
    expect([1, 2, 3].map(() => dns.answer(query("a.example")) !== undefined)).toEqual([true, true, false]);
  });
});

describe("the name table", () => {
  test("a mentioned name keeps its address, whatever else is asked", () => {
    const table = new NameTable((name) => name.endsWith(".kept"), 4096);
    const address = table.addressOf("a.kept")!;
    for (let i = 0; i < 10_000; i += 1) table.addressOf(`n${i}.other`);
    expect(table.addressOf("a.kept")).toBe(address);
    expect(table.nameOf(address)).toBe("a.kept");
    expect(table.size).toBeLessThanOrEqual(4096);
  });

  test("shared addresses are reused, the one asked for longest ago first", () => {
    const table = new NameTable(() => false, 4096);
    const first = table.addressOf("first")!;
    for (let i = 1; i < SHARED_NAMES; i += 1) table.addressOf(`n${i}`);
    expect(table.addressOf("first")).toBe(first);
    const reused = table.addressOf("late")!;
    expect(reused).not.toBe(first);
    expect(table.nameOf(reused)).toBe("late");
    expect(table.nameOf(first)).toBe("first");
  });

  test("a name that the policy mentions later gets an address of its own; the shared one still means it", () => {
    let mentioned = false;
    const table = new NameTable(() => mentioned, 4096);
    const shared = table.addressOf("a.example")!;
    mentioned = true;
    const kept = table.addressOf("a.example")!;
    expect(kept).not.toBe(shared);
    expect([table.nameOf(shared), table.nameOf(kept)]).toEqual(["a.example", "a.example"]);
  });

  test("kept names are bounded, and the end of the pool is a failure, not a reuse", () => {
    const table = new NameTable(() => true, SHARED_NAMES + 3);
    const addresses = ["a", "b", "c", "d"].map((name) => table.addressOf(name));
    expect(new Set(addresses.slice(0, 3)).size).toBe(3);
    expect(addresses[3]).toBeUndefined();
  });

  test("a successor answers the same, and never gives an address of the predecessor to another name", () => {
    const table = new NameTable((name) => name.endsWith(".kept"), 4096);
    const kept = table.addressOf("a.kept");
    const shared = table.addressOf("b.other");
    const successor = new NameTable((name) => name.endsWith(".kept"), 4096);
    successor.import(table.export());
    expect([successor.addressOf("a.kept"), successor.addressOf("b.other")]).toEqual([kept, shared]);
    expect([kept, shared]).not.toContain(successor.addressOf("c.kept"));
    expect([kept, shared]).not.toContain(successor.addressOf("d.other"));
  });

  test("the state fits its limit with the longest names; what was left out is not handed out again", () => {
    const long = (i: number): string =>
      `${String(i).padStart(60, "a")}.${"b".repeat(60)}.${"c".repeat(60)}.${"d".repeat(60)}`;
    const table = new NameTable(() => true, 4096);
    const addresses = new Map<number, string>();
    for (let i = 0; i < 3000; i += 1) addresses.set(table.addressOf(long(i))!, long(i));
    const state = table.export();
    expect(state.length).toBeLessThanOrEqual(STATE_BYTES);
    const successor = new NameTable(() => true, 1e6);
    successor.import(state);
    const fresh = successor.addressOf("new.example")!;
    expect(addresses.has(fresh)).toBe(false);
    for (const [address, name] of addresses) expect([name, undefined]).toContain(successor.nameOf(address));
  });

  test.each(["garbage", "1 5 5", "2 1025 1\n", "1 1025 1\n99999999 a\n", "1 1025 1\n0 a\n", "1 1025 1\n5 a b\n"])(
    "the state %j is refused whole",
    (text) => {
      const table = new NameTable(() => true, 4096);
      expect(() => table.import(Buffer.from(text))).toThrow(/cannot be read/);
      expect(table.size).toBe(0);
    },
  );

  test("addresses outside the pool mean nothing", () => {
    const table = new NameTable(() => true, 4096);
    table.addressOf("a");
    expect(table.nameOf(SYNTHETIC_BASE)).toBeUndefined();
    expect(table.nameOf(0x7f000001)).toBeUndefined();
  });
});

test("descriptors that are no sockets are told at the start", async () => {
  const file = openSync("/dev/null", "r");
  await expect(server().start({ udpFd: file, tcpFd: file })).rejects.toThrow();
  closeSync(file);
});

describe("of a sandbox that had its slice", () => {
  const resources: AsyncDisposableStack[] = [];
  afterEach(async () => {
    for (const stack of resources.splice(0)) await stack.disposeAsync();
  });

  /** A server whose sandbox's turn comes when `go` says so. */
  async function busyServer() {
    const waiting: (() => void)[] = [];
    const share = { ready: () => false, later: (work: () => void) => waiting.push(work) } as unknown as FairShare;
    const dns = new DnsServer(new NameTable(() => false, 4096), new TokenBucket(1e9, 1e9, () => 0), share);
    const [udp, tcp] = [boundUdp(), boundTcp()];
    await dns.start({ udpFd: udp.fd, tcpFd: tcp.fd });
    const stack = new AsyncDisposableStack();
    stack.use(dns);
    resources.push(stack);
    const go = (): void => waiting.splice(0).forEach((work) => void work());
    return { udpPort: udp.port, tcpPort: tcp.port, waiting, go, stack };
  }

  test("as many questions wait as may; further ones stay in the kernel and are read once half were answered", async () => {
    const { udpPort, waiting, go, stack } = await busyServer();
    const client = createSocket("udp4");
    stack.defer(() => {
      client.close();
    });
    let answered = 0;
    client.on("message", () => {
      answered += 1;
    });
    const asked = DNS_WAITING + 50;
    for (let n = 0; n < asked; n += 1)
      await new Promise((resolve) => client.send(query(`n${n}.example`), udpPort, "127.0.0.1", resolve));
    await sleep(50);
    expect([answered, waiting.length]).toEqual([0, 1]);
    go();
    await expect.poll(() => answered).toBe(DNS_WAITING);
    // Those that did not wait here were not lost.
    await expect.poll(() => waiting.length).toBe(1);
    go();
    await expect.poll(() => answered).toBe(asked);
  });

  test("a connection is not read until its questions were answered", async () => {
    const { tcpPort, waiting, go, stack } = await busyServer();
    const socket = connect(tcpPort, "127.0.0.1");
    stack.defer(() => {
      socket.destroy();
    });
    let answered = 0;
    socket.on("data", (chunk: Buffer) => {
      answered += chunk.length;
    });
    const message = query("api.example.com");
    const framed = Buffer.concat([Buffer.from([0, message.length]), message]);
    const size = framed.length + 16;
    socket.write(framed);
    await expect.poll(() => waiting.length).toBe(1);
    socket.write(framed);
    await sleep(50);
    // Not a second piece of work: what came meanwhile is in the kernel.
    expect([answered, waiting.length]).toEqual([0, 1]);
    go();
    await expect.poll(() => answered).toBe(size);
    await expect.poll(() => waiting.length).toBe(1);
    go();
    await expect.poll(() => answered).toBe(2 * size);
  });
});

describe("over sockets", () => {
  let fixture: Fixture | undefined;
  afterEach(async () => {
    await fixture?.[Symbol.asyncDispose]();
  });

  test("a real stub resolver gets addresses over UDP, and TCP gives the same", async () => {
    fixture = await Fixture.create();
    const resolver = new Resolver();
    resolver.setServers([`127.0.0.1:${fixture.dnsPort}`]);
    const [address] = await resolver.resolve4("api.example.com");
    expect(address).toMatch(/^198\.1[89]\./);
    await expect(resolver.resolve6("api.example.com")).rejects.toMatchObject({ code: "ENODATA" });
    const socket = connect(fixture.dnsTcpPort, "127.0.0.1");
    const message = query("api.example.com");
    const framed = Buffer.concat([Buffer.from([0, message.length]), message]);
    socket.write(framed.subarray(0, 7));
    setTimeout(() => socket.end(framed.subarray(7)), 20);
    const answer = Buffer.from(await readAll(socket), "latin1");
    expect([...answer.subarray(-4)].join(".")).toBe(address);
  });

  test("a burst above the rate over UDP is answered later, in a fraction of what a lost question costs", async () => {
    fixture = await Fixture.create();
    const resolver = new Resolver({ timeout: 4_000, tries: 1 });
    resolver.setServers([`127.0.0.1:${fixture.dnsPort}`]);
    // No more than the socket holds while this process is busy asking.
    const asked = Array.from({ length: 240 }, (_, n) => resolver.resolve4(`n${n}.example.com`));
    await expect(Promise.all(asked)).resolves.toHaveLength(240);
    expect(fixture.events.limits[0]).toMatchObject({ limit: "dns_queries_per_second", value: 200 });
  });

  test("a flood on one TCP connection is not read faster than it is answered", async () => {
    fixture = await Fixture.create();
    const socket = connect(fixture.dnsTcpPort, "127.0.0.1");
    socket.on("error", () => {});
    const message = query("api.example.com");
    const block = Buffer.concat(
      Array.from({ length: 1_000 }, () => [Buffer.from([0, message.length]), message]).flat(),
    );
    let answered = 0;
    const many = new Promise<void>((resolve) =>
      socket.on("data", (chunk: Buffer) => {
        answered += chunk.length;
        // More than the burst: they waited, and none was lost.
        if (answered > 220 * (message.length + 18)) resolve();
      }),
    );
    // More than the kernel's buffers hold.
    for (let n = 0; n < 600; n += 1) socket.write(block);
    await many;
    expect(socket.writableLength).toBeGreaterThan(0);
    expect(fixture.events.limits[0]).toMatchObject({ limit: "dns_queries_per_second" });
    socket.destroy();
  });
});

import { once } from "node:events";
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import { expect } from "vitest";
import { rawHttp, type TestGateway } from "./api.ts";
import type { Place } from "./http2-frames.ts";
import type { NeighbourReport } from "./neighbour.ts";
import { allowedMs } from "./slowness.ts";

/** For attacks on the wire of a gateway: where it listens, and whether anybody else notices. */

/** The neighbour shares two cores with attacker and gateway: what counts is that it is served at all. Milliseconds. */
const NEIGHBOUR_P99_MS = 2_500;
/** A socket that is closed on one side is closed on the other after this at most. Milliseconds. */
const SETTLE_MS = 10_000;
/** Resident memory counts as still when it has not moved by more than this between looks. */
const STILL_KB = 1_024;

export interface Targets {
  /** The owner, over the users' socket. */
  readonly owner: Place;
  /** A user with a certificate, over TLS. */
  readonly user: Place;
  /** Anybody, over TLS. */
  readonly anybody: Place;
}

export async function targetsOf(gateway: TestGateway): Promise<Targets> {
  const status = await rawHttp(gateway.folders.userSocket, "GET /local/status HTTP/1.1");
  const { record } = JSON.parse(status.slice(status.indexOf("{"), status.lastIndexOf("}") + 1)) as {
    record: { endpoint: string };
  };
  const { hostname: host, port } = new URL(record.endpoint);
  const folder = join(gateway.user.home.config, "openshell/gateways", gateway.folders.name, "mtls");
  const read = (name: string) => readFileSync(join(folder, name));
  const ca = read("ca.crt");
  const at = { host, port: Number(port) };
  return {
    owner: { path: gateway.folders.userSocket },
    user: { ...at, tls: { ca, key: read("tls.key"), cert: read("tls.crt") } },
    anybody: { ...at, tls: { ca } },
  };
}

/** Sockets that the process has open. */
export function socketsOf(pid: number): number {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).filter((fd) => {
    try {
      return readlinkSync(join(folder, fd)).startsWith("socket:");
    } catch {
      return false;
    }
  }).length;
}

function residentKb(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
}

/** Resident memory in MiB once it no longer falls. */
export async function settledMb(pid: number): Promise<number> {
  let seen = residentKb(pid);
  for (let still = 0, n = 0; still < 3 && n < 40; n++) {
    await sleep(100);
    const now = residentKb(pid);
    still = Math.abs(now - seen) <= STILL_KB ? still + 1 : 0;
    seen = now;
  }
  return seen / 1024;
}

/** Lines of the gateway's log that speak of a failure which nobody expected. */
function complaints(gateway: TestGateway): readonly string[] {
  const path = join(gateway.folders.state, "logs", "gateway.log");
  const other = join("/var/log/openshell", gateway.folders.name, "gateway.log");
  const log = [path, other].find(existsSync);
  if (log === undefined) throw new Error(`no gateway.log at ${path}`);
  return readFileSync(log, "utf8")
    .split("\n")
    .filter((line) => /nobody (handled|waited for)|failed unexpectedly/.test(line));
}

/** One thread for a file of attacks. */
let thread: Worker | undefined;

/** Starts the neighbour; the returned function ends it, and throws unless it was served all the while. */
function startNeighbour(gateway: TestGateway): () => Promise<void> {
  thread ??= new Worker(new URL("./neighbour.ts", import.meta.url));
  thread.unref();
  thread.postMessage({ start: gateway.folders.userSocket });
  return async () => {
    const report = once(thread!, "message");
    thread!.postMessage("stop");
    const [{ latencies, failures }] = (await report) as [NeighbourReport];
    const sorted = latencies.toSorted((a, b) => a - b);
    const p99 = sorted[Math.floor(sorted.length * 0.99)] ?? 0;
    expect(failures, "calls of somebody else that failed").toEqual([]);
    expect(sorted.length, "calls of somebody else").toBeGreaterThan(0);
    expect(p99, "p99 of somebody else's calls, in ms").toBeLessThan(allowedMs(NEIGHBOUR_P99_MS));
  };
}

/**
 * Runs an attack beside a neighbour. Afterwards the neighbour was served, the gateway has closed what the attack opened,
 * and its log holds no failure that nobody expected.
 */
export async function whileServing(gateway: TestGateway, attack: () => Promise<void>): Promise<void> {
  const before = socketsOf(gateway.pid);
  const complained = complaints(gateway).length;
  const stopNeighbour = startNeighbour(gateway);
  try {
    await attack();
  } finally {
    await stopNeighbour();
  }
  const end = performance.now() + SETTLE_MS;
  while (socketsOf(gateway.pid) > before && performance.now() < end) await sleep(20);
  expect(socketsOf(gateway.pid), "sockets of the gateway").toBeLessThanOrEqual(before);
  expect(complaints(gateway).slice(complained), "the gateway's log").toEqual([]);
}

/**
 * Most that the gateway may hold after an attack, in MiB. Idle it has 90. What attacks leave behind is garbage that the
 * runtime takes back when it has to: 250 to 350 were seen, 530 on a busy machine; an attack that is not bounded goes far
 * beyond. What stays to the byte is counted in tests/functional/rpc/memory.test.ts.
 */
const RESIDENT_MB = 700;

/** As `whileServing`, several times; afterwards the gateway's memory is what it should be. */
export async function memoryStaysFlat(
  gateway: TestGateway,
  attack: () => Promise<void>,
  { rounds = 3 } = {},
): Promise<void> {
  await whileServing(gateway, async () => {
    for (let round = 0; round < rounds; round++) await attack();
  });
  expect(await settledMb(gateway.pid), "resident memory in MiB").toBeLessThan(RESIDENT_MB);
}

import { createSocket } from "node:dgram";
import { lookup } from "node:dns/promises";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { createSecureContext, type TLSSocket, connect as tlsConnect } from "node:tls";

/**
 * The quiet neighbour: runs inside its sandbox, needs nothing but Node. Does a little of three things side by side for
 * some seconds, and prints what each took and what failed as JSON.
 *
 *   node client.ts HOST SECONDS
 */

export interface QuietReport {
  /** Milliseconds of each operation. */
  readonly keepalive: readonly number[];
  readonly connection: readonly number[];
  readonly dns: readonly number[];
  readonly failures: readonly string[];
}

/** After which an operation counts as failed: what a user would call broken. */
const FAILED_MS = 10_000;
/** Pauses: a quiet neighbour uses a small part of a processor. */
const PAUSES_MS = { keepalive: 2, connection: 20, dns: 8 };

const [host, seconds] = process.argv.slice(2) as [string, string];
const { address } = await lookup(host, 4);
const roots = createSecureContext({ ca: readFileSync(process.env["SSL_CERT_FILE"]!, "utf8") });
const request = `GET /quiet HTTP/1.1\r\nHost: ${host}\r\n\r\n`;

function open(): Promise<TLSSocket> {
  return new Promise((resolve, reject) => {
    const socket = tlsConnect({ host: address, port: 443, servername: host, secureContext: roots });
    socket.setNoDelay(true);
    socket.once("error", reject);
    socket.once("secureConnect", () => resolve(socket));
  });
}

function ask(socket: TLSSocket): Promise<void> {
  return new Promise((resolve, reject) => {
    let text = "";
    const done = (error?: Error): void => {
      socket.off("data", onData);
      socket.off("error", done);
      socket.off("close", onClose);
      if (error === undefined) resolve();
      else reject(error);
    };
    const onClose = (): void => done(new Error("closed"));
    const onData = (chunk: Buffer): void => {
      text += chunk.toString("latin1");
      const end = text.indexOf("\r\n\r\n");
      if (end < 0) return;
      const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
      if (text.length < end + 4 + length) return;
      done(text.startsWith("HTTP/1.1 200 ") ? undefined : new Error(text.slice(0, 40)));
    };
    socket.on("data", onData);
    socket.on("error", done);
    socket.on("close", onClose);
    socket.write(request);
  });
}

const udp = createSocket("udp4");
let nextId = 1;

/** The A record of the host, as a resolver asks for it. */
function resolveHost(): Promise<void> {
  const id = nextId++ & 0xffff;
  const labels = host.split(".").flatMap((label) => [Buffer.from([label.length]), Buffer.from(label)]);
  const head = Buffer.from([id >> 8, id & 255, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
  return new Promise((resolve, reject) => {
    const onMessage = (message: Buffer): void => {
      if (message.readUInt16BE(0) !== id) return;
      udp.off("message", onMessage);
      if ((message[3]! & 15) === 0 && message.readUInt16BE(6) === 1) resolve();
      else reject(new Error("no address"));
    };
    udp.on("message", onMessage);
    udp.send(Buffer.concat([head, ...labels, Buffer.from([0, 0, 1, 0, 1])]), 53, "127.0.0.1");
  });
}

const until = performance.now() + Number(seconds) * 1000;
const failures: string[] = [];

async function repeat(name: keyof typeof PAUSES_MS, step: () => Promise<void>): Promise<readonly number[]> {
  const times: number[] = [];
  while (performance.now() < until) {
    const begin = performance.now();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`nothing within ${FAILED_MS} ms`)), FAILED_MS);
    });
    try {
      await Promise.race([step(), late]);
    } catch (error) {
      failures.push(`${name}: ${error instanceof Error ? error.message : error}`);
    }
    clearTimeout(timer);
    times.push(performance.now() - begin);
    await sleep(PAUSES_MS[name]);
  }
  return times;
}

let kept = await open();
// The first requests connect upstream and compile code.
for (let n = 0; n < 3; n += 1) await ask(kept);
const [keepalive, connection, dns] = await Promise.all([
  repeat("keepalive", async () => {
    if (kept.destroyed) kept = await open();
    await ask(kept);
  }),
  repeat("connection", async () => {
    const socket = await open();
    try {
      await ask(socket);
    } finally {
      socket.destroy();
    }
  }),
  repeat("dns", resolveHost),
]);
console.log(JSON.stringify({ keepalive, connection, dns, failures } satisfies QuietReport));
process.exit(0);

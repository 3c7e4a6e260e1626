/**
 * Client of the data-path measurements. Runs inside a sandbox and, with the same code and the same Node, outside.
 * Needs nothing but Node: its folder is mounted alone. Takes one job as JSON, prints one {@link Measured} as JSON; `watch`
 * prints a line at every change of the answer's status.
 *
 *   node http-client.ts '{"kind": "keepalive", …}'
 */
import { lookup } from "node:dns/promises";
import { readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { createSecureContext, type SecureContext, connect as tlsConnect } from "node:tls";

export interface Job {
  /** `denied`: a CONNECT to the explicit proxy that is answered with a refusal. */
  readonly kind: "keepalive" | "connections" | "bulk" | "denied" | "watch";
  readonly secure: boolean;
  readonly host: string;
  readonly port: number;
  /** Dialled in place of resolving `host`. */
  readonly address?: string;
  readonly clients: number;
  readonly seconds: number;
  readonly path: string;
  readonly method: string;
  /** Status that every answer must have. */
  readonly status: number;
  /** File with trusted roots; empty for the one that the environment names. */
  readonly caFile: string;
}

export interface Measured {
  readonly count: number;
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  readonly megabytesPerSecond: number;
}

/** A change that `watch` saw; milliseconds since the epoch, when the answer to the request was complete. */
export interface Change {
  readonly at: number;
  readonly status: number;
}

/** A measurement goes on for this many operations, that the start does not count, but not for much longer. */
const MIN_COUNT = 500;
const MAX_MORE_SECONDS = 2;

interface Answer {
  readonly status: number;
  readonly bytes: number;
  readonly closes: boolean;
}

function opened<T extends Socket>(socket: T, event: string): Promise<T> {
  return new Promise((resolve, reject) => {
    socket.once("error", reject);
    socket.once(event, () => {
      socket.off("error", reject);
      socket.on("error", () => {});
      resolve(socket);
    });
  });
}

async function open(job: Job, roots: SecureContext): Promise<Socket> {
  const raw = await opened(connect({ host: job.address ?? job.host, port: job.port, noDelay: true }), "connect");
  if (!job.secure) return raw;
  const secure = tlsConnect({
    socket: raw,
    servername: job.host,
    secureContext: roots,
    ALPNProtocols: ["http/1.1"],
  });
  return opened(secure, "secureConnect");
}

/** One request on an open connection. */
function ask(socket: Socket, text: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    let got = 0;
    let want = -1;
    let head = "";
    const finish = (closes: boolean): void => {
      socket.off("data", onData);
      socket.off("close", onClose);
      resolve({ status: Number(head.slice(9, 12)), bytes: got, closes });
    };
    const onData = (chunk: Buffer): void => {
      got += chunk.length;
      if (want === -1) {
        head += chunk.toString("latin1");
        const end = head.indexOf("\r\n\r\n");
        if (end === -1) return;
        const length = /content-length: (\d+)/i.exec(head.slice(0, end));
        if (length === null) throw new Error(`no length: ${head}`);
        want = end + 4 + Number(length[1]);
      }
      if (got >= want) finish(/\r\nconnection: close/i.test(head));
    };
    const onClose = (): void => reject(new Error(`closed after ${got} bytes`));
    socket.on("data", onData);
    socket.on("close", onClose);
    socket.write(text, "latin1");
  });
}

function expect(answer: Answer, job: Job): void {
  if (answer.status !== job.status) throw new Error(`status ${answer.status} in place of ${job.status}`);
}

async function measure(job: Job, roots: SecureContext): Promise<Measured> {
  const text = `${job.method} ${job.path} HTTP/1.1\r\nHost: ${job.host}\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n`;
  const times: number[] = [];
  let bytes = 0;
  const timed = async (step: () => Promise<void>): Promise<void> => {
    const begin = performance.now();
    await step();
    times.push(performance.now() - begin);
  };
  // Names are asked for once: what connections cost is measured, not the resolver, which has a rate limit of its own.
  const address = job.address ?? (await lookup(job.host)).address;
  const dialled = job.kind === "connections" && job.clients > 1 ? { ...job, address } : job;
  const startedAt = performance.now();
  const until = startedAt + job.seconds * 1000;
  const latest = startedAt + (job.seconds + MAX_MORE_SECONDS) * 1000;
  const goesOn = (): boolean => {
    const now = performance.now();
    return now < until || (job.seconds > 0 && times.length < MIN_COUNT && now < latest);
  };
  const client = async (): Promise<void> => {
    if (job.kind === "denied") {
      const refused = `CONNECT ${job.host}:443 HTTP/1.1\r\nHost: ${job.host}:443\r\n\r\n`;
      while (goesOn()) {
        await timed(async () => {
          const socket = await open(job, roots);
          expect(await ask(socket, refused), job);
          socket.destroy();
        });
      }
    } else if (job.kind === "connections") {
      while (goesOn()) {
        await timed(async () => {
          const socket = await open(dialled, roots);
          expect(await ask(socket, text), job);
          socket.destroy();
        });
      }
    } else {
      let socket = await open(job, roots);
      // The first request connects upstream as well; `connections` measures that.
      if (job.kind === "keepalive") await ask(socket, text);
      do {
        await timed(async () => {
          const answer = await ask(socket, text);
          expect(answer, job);
          bytes += answer.bytes;
          if (answer.closes) {
            socket.destroy();
            socket = await open(job, roots);
          }
        });
      } while (goesOn());
      socket.destroy();
    }
  };
  await Promise.all(Array.from({ length: job.clients }, client));
  const seconds = (performance.now() - startedAt) / 1000;
  times.sort((a, b) => a - b);
  return {
    count: times.length,
    perSecond: times.length / seconds,
    p50: times[Math.floor(times.length / 2)] ?? 0,
    p99: times[Math.floor(times.length * 0.99)] ?? 0,
    megabytesPerSecond: bytes / seconds / 1e6,
  };
}

async function watch(job: Job, roots: SecureContext): Promise<void> {
  const text = `${job.method} ${job.path} HTTP/1.1\r\nHost: ${job.host}\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n`;
  const until = performance.now() + job.seconds * 1000;
  let last = 0;
  let socket: Socket | undefined;
  while (performance.now() < until) {
    // Not as fast as it can: the change itself needs a processor.
    await new Promise((done) => setTimeout(done, 1));
    try {
      if (socket === undefined || socket.destroyed) socket = await open(job, roots);
      const answer = await ask(socket, text);
      if (answer.status !== last) {
        last = answer.status;
        console.log(JSON.stringify({ at: performance.timeOrigin + performance.now(), status: last } satisfies Change));
      }
      if (answer.closes) socket.destroy();
    } catch {
      socket?.destroy();
    }
  }
  socket?.destroy();
}

const job = JSON.parse(process.argv[2]!) as Job;
// Once: reading a bundle of some hundred roots costs more than a handshake.
const roots = createSecureContext({ ca: readFileSync(job.caFile || process.env["SSL_CERT_FILE"]!, "utf8") });
if (job.kind === "watch") await watch(job, roots);
else console.log(JSON.stringify(await measure(job, roots)));
process.exit(0);

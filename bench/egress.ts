/**
 * What inspection costs: the same requests direct and through the egress path, in one run. Client, egress and origin are
 * three processes on the machine at hand, events are written to files; only ratios of one run mean something.
 *
 *   node bench/egress.ts [seconds a measurement, default 2]
 */
import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import { type AddressInfo, createServer as createNetServer, connect as netConnect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as tlsConnect } from "node:tls";
import { fileURLToPath } from "node:url";
import { systemClock } from "@openshell/base";
import { EventLog } from "@openshell/ocsf";
import { EXE, Fixture, HOSTS } from "@openshell/supervisor/egress/testing/fixture.ts";
import { createEgressEvents } from "@openshell/supervisor/logs/egress-events.ts";

const HOST = "api.example.com";
const BULK_BYTES = 256 * 1024 * 1024;

interface OriginMessage {
  readonly cert: string;
  readonly key: string;
}

interface Job {
  readonly kind: "keepalive" | "connections" | "bulk";
  /** `tls`: through CONNECT and inspection; `proxy`: absolute form; `tunnel`: CONNECT without inspection. */
  readonly route: "direct-tls" | "direct-http" | "direct-tcp" | "tls" | "proxy" | "tunnel" | "denied-connect";
  readonly clients: number;
  readonly seconds: number;
  readonly port: number;
  readonly proxyPort: number;
  readonly ca: string;
  readonly path: string;
  readonly method: string;
  readonly bytes: number;
}

export interface Measured {
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  readonly megabytesPerSecond: number;
}

function connected(socket: Socket, event: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    socket.once("error", reject);
    socket.once(event, () => {
      socket.off("error", reject);
      socket.on("error", () => undefined);
      resolve(socket);
    });
  });
}

async function open(job: Job): Promise<Socket> {
  const direct = job.route.startsWith("direct");
  const port = direct ? job.port : job.proxyPort;
  const socket = await connected(netConnect({ host: "127.0.0.1", port, noDelay: true }), "connect");
  if (job.route === "tls" || job.route === "tunnel") {
    const target = job.route === "tls" ? `${HOST}:443` : "raw.example.com:9000";
    socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
    const [answer] = (await once(socket, "data")) as [Buffer];
    if (!answer.toString("latin1").startsWith("HTTP/1.1 200")) throw new Error(answer.toString("latin1"));
  }
  if (job.route !== "tls" && job.route !== "direct-tls") return socket;
  return connected(tlsConnect({ socket, servername: HOST, ca: job.ca, ALPNProtocols: ["http/1.1"] }), "secureConnect");
}

/** One request on an open connection; resolves with the time it took. */
function ask(socket: Socket, text: string, bytes: number): Promise<number> {
  const started = performance.now();
  return new Promise((resolve, reject) => {
    let got = 0;
    let want = -1;
    let head = "";
    const onData = (chunk: Buffer): void => {
      got += chunk.length;
      if (want === -1) {
        head += chunk.toString("latin1");
        const end = head.indexOf("\r\n\r\n");
        if (end === -1) return;
        want = end + 4 + Number(/content-length: (\d+)/i.exec(head)?.[1] ?? bytes);
      }
      if (got < want) return;
      socket.off("data", onData);
      socket.off("close", onClose);
      resolve(performance.now() - started);
    };
    const onClose = (): void => reject(new Error("closed"));
    socket.on("data", onData);
    socket.on("close", onClose);
    socket.write(text, "latin1");
  });
}

async function client(job: Job): Promise<Measured> {
  const times: number[] = [];
  let bytes = 0;
  const target = job.route === "proxy" ? `http://${HOST}${job.path}` : job.path;
  const text = `${job.method} ${target} HTTP/1.1\r\nHost: ${HOST}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n`;
  const started = performance.now();
  const until = started + job.seconds * 1000;
  await Promise.all(
    Array.from({ length: job.clients }, async () => {
      if (job.kind === "connections") {
        while (performance.now() < until) {
          const begin = performance.now();
          if (job.route === "denied-connect") {
            const socket = await connected(netConnect({ host: "127.0.0.1", port: job.proxyPort }), "connect");
            socket.end("CONNECT evil.example.com:443 HTTP/1.1\r\nHost: evil.example.com\r\n\r\n");
            socket.resume();
            await once(socket, "close");
          } else {
            const socket = await open(job);
            await ask(socket, text, job.bytes);
            socket.destroy();
          }
          times.push(performance.now() - begin);
        }
        return;
      }
      const socket = await open(job);
      if (job.kind === "bulk") {
        await ask(socket, text, job.bytes);
        bytes += job.bytes;
      } else while (performance.now() < until) times.push(await ask(socket, text, job.bytes));
      socket.destroy();
    }),
  );
  const seconds = (performance.now() - started) / 1000;
  times.sort((a, b) => a - b);
  return {
    perSecond: times.length / seconds,
    p50: times[Math.floor(times.length / 2)] ?? 0,
    p99: times[Math.floor(times.length * 0.99)] ?? 0,
    megabytesPerSecond: bytes / seconds / 1e6,
  };
}

async function origin(message: OriginMessage): Promise<void> {
  const piece = Buffer.alloc(1 << 20, "x");
  const answer = Buffer.from("x".repeat(100));
  const listener = (req: IncomingMessage, res: ServerResponse): void => {
    if (req.url !== "/bulk") {
      res.setHeader("Content-Length", answer.length);
      res.end(answer);
      return;
    }
    res.setHeader("Content-Length", BULK_BYTES);
    let left = BULK_BYTES;
    const more = (): void => {
      while (left > 0) {
        left -= piece.length;
        if (left === 0) res.end(piece);
        else if (!res.write(piece)) {
          res.once("drain", more);
          return;
        }
      }
    };
    more();
  };
  const servers = [
    createHttpsServer({ cert: message.cert, key: message.key, keepAliveTimeout: 600_000 }, listener),
    createHttpServer({ keepAliveTimeout: 600_000 }, listener),
    createNetServer(),
  ];
  for (const server of servers) server.listen(0, "127.0.0.1");
  await Promise.all(servers.map((server) => once(server, "listening")));
  process.send!(servers.map((server) => (server.address() as AddressInfo).port));
}

function policy(rules: number): string {
  const further = Array.from(
    { length: rules - 1 },
    (_, i) => `          - allow: {method: GET, path: "/v${i}/items/*/detail"}\n`,
  ).join("");
  return `
version: 1
network_policies:
  api:
    endpoints:
      - host: ${HOST}
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
${further}          - allow: {method: GET, path: "/**"}
      - {host: ${HOST}, port: 80, protocol: rest, enforcement: enforce, access: read-only}
      - {host: raw.example.com, port: 9000, tls: skip}
    binaries: [{path: "${EXE}"}]
`;
}

async function main(seconds: number): Promise<void> {
  const file = fileURLToPath(import.meta.url);
  const folder = mkdtempSync(join(tmpdir(), "bench-egress-"));
  const context = { sandboxId: "bench", sandboxName: "bench", productVersion: "0", hostname: "bench" };
  const log = new EventLog({ directory: folder, context, clock: systemClock });
  const events = createEgressEvents(log, systemClock, (text) => text);
  const fixture = await Fixture.create({ policy: policy(1), deps: { events } });
  const certificate = await fixture.originCa.issue(HOST);
  const originProcess = fork(file, ["origin"]);
  originProcess.send(certificate satisfies OriginMessage);
  const [[httpsPort, httpPort]] = (await once(originProcess, "message")) as [[number, number]];
  fixture.routes.set(`${HOSTS[HOST]}:443`, httpsPort);
  fixture.routes.set(`${HOSTS[HOST]}:80`, httpPort);
  fixture.routes.set(`${HOSTS["raw.example.com"]}:9000`, httpPort);
  const clientProcess = fork(file, ["client"]);
  const run = async (name: string, job: Partial<Job> & Pick<Job, "kind" | "route">): Promise<Measured> => {
    const secure = job.route === "direct-tls" || job.route === "tls";
    clientProcess.send({
      clients: 1,
      seconds,
      path: job.kind === "bulk" ? "/bulk" : "/one",
      method: "GET",
      bytes: job.kind === "bulk" ? BULK_BYTES : 100,
      port: secure ? httpsPort : httpPort,
      proxyPort: fixture.proxyPort,
      ca: job.route === "tls" ? fixture.inspectionCa.certificatePem : fixture.originCa.certificatePem,
      ...job,
    } satisfies Job);
    const [measured] = (await once(clientProcess, "message")) as [Measured | { error: string }];
    if ("error" in measured) throw new Error(`${name}: ${measured.error}`);
    const { perSecond, p50, p99, megabytesPerSecond } = measured;
    console.log(
      job.kind === "bulk"
        ? `${name.padEnd(52)} ${megabytesPerSecond.toFixed(0).padStart(7)} MB/s`
        : `${name.padEnd(52)} ${perSecond.toFixed(0).padStart(7)}/s  p50 ${p50.toFixed(3)} ms  p99 ${p99.toFixed(3)} ms`,
    );
    return measured;
  };
  const keepalive = { kind: "keepalive" } as const;
  await run("warm-up", { ...keepalive, route: "tls", clients: 4 });
  const direct1 = await run("direct HTTPS, keep-alive, 1 client", { ...keepalive, route: "direct-tls" });
  const inspected1 = await run("inspected HTTPS, keep-alive, 1 client", { ...keepalive, route: "tls" });
  console.log(`  inspected − direct, p50: ${(inspected1.p50 - direct1.p50).toFixed(3)} ms (budget 0.3)`);
  await run("direct HTTPS, keep-alive, 16 clients", { ...keepalive, route: "direct-tls", clients: 16 });
  await run("inspected HTTPS, keep-alive, 16 clients, 1 rule", { ...keepalive, route: "tls", clients: 16 });
  fixture.publish(policy(100));
  await run("inspected HTTPS, keep-alive, 16 clients, 100 rules", { ...keepalive, route: "tls", clients: 16 });
  fixture.publish(policy(1));
  await run("direct HTTP, keep-alive, 16 clients", { ...keepalive, route: "direct-http", clients: 16 });
  await run("plain HTTP through the proxy, 16 clients", { ...keepalive, route: "proxy", clients: 16 });
  await run("tunnel, keep-alive, 16 clients", { ...keepalive, route: "tunnel", clients: 16 });
  const fresh = { kind: "connections", clients: 8 } as const;
  await run("direct HTTPS, new connection each, 8 clients", { ...fresh, route: "direct-tls" });
  await run("inspected HTTPS, new connection each, 8 clients", { ...fresh, route: "tls" });
  await run("denied CONNECT, new connection each, 8 clients", { ...fresh, route: "denied-connect" });
  await run("denied requests, keep-alive, 16 clients", { ...keepalive, route: "tls", clients: 16, method: "POST" });
  await run("bulk download, direct HTTPS", { kind: "bulk", route: "direct-tls" });
  await run("bulk download, inspected", { kind: "bulk", route: "tls" });
  await run("bulk download, direct TCP", { kind: "bulk", route: "direct-tcp" });
  await run("bulk download, tunnel", { kind: "bulk", route: "tunnel" });
  clientProcess.disconnect();
  originProcess.kill();
  await fixture[Symbol.asyncDispose]();
  await log[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
}

const role = process.argv[2];
if (role === "origin") process.once("message", (message) => void origin(message as OriginMessage));
else if (role === "client") {
  process.on("message", (job) => {
    client(job as Job).then(
      (measured) => process.send!(measured),
      (error) => process.send!({ error: String(error) }),
    );
  });
} else {
  await main(Number(role ?? 2));
  process.exit(0);
}

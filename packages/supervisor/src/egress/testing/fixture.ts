import "reflect-metadata";
import { createPrivateKey, webcrypto } from "node:crypto";
import { fstatSync, openSync } from "node:fs";
import { createServer as createHttpServer, type Server as HttpServer, type RequestListener } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import {
  type AddressInfo,
  createServer as createNetServer,
  connect as netConnect,
  type Server,
  type Socket,
} from "node:net";
import { type TLSSocket, connect as tlsConnect } from "node:tls";
import type { SocketOwner } from "@openshell/boundary";
import { compilePolicy, parsePolicy } from "@openshell/policy";
import * as x509 from "@peculiar/x509";
import { parseAddress } from "../address.ts";
import { type CredentialSource, NO_CREDENTIALS } from "../credential-source.ts";
import type { ConnectionEvent, EgressEvents, FindingEvent, RequestEvent } from "../events.ts";
import { type ExecutableHasher, WorkerHasher } from "../hash.ts";
import type { LimitEvent } from "../limit-events.ts";
import { type GenerationInput, SandboxEgress, type SandboxEgressDeps } from "../sandbox-egress.ts";
import { LeafMint } from "../tls/leaf.ts";
import { TrustStore } from "../tls/trust.ts";

/**
 * A sandbox's egress over loopback sockets: the kernel's part (namespace, capture) and name resolution are stood in for,
 * everything else is the real thing. Origins are real servers that the dialer reaches under made-up public addresses.
 */

const ALGORITHM = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;

export interface TestCa {
  readonly certificatePem: string;
  readonly privateKeyPem: string;
  issue(host: string): Promise<{ readonly cert: string; readonly key: string }>;
}

export async function createCa(name: string): Promise<TestCa> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
  const ca = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: "01",
    name: `CN=${name}`,
    notBefore: new Date(Date.now() - 3600_000),
    notAfter: new Date(Date.now() + 86_400_000),
    signingAlgorithm: ALGORITHM,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  return {
    certificatePem: ca.toString("pem"),
    privateKeyPem: await exportKey(keys.privateKey),
    async issue(host) {
      const own = await webcrypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
      const leaf = await x509.X509CertificateGenerator.create({
        serialNumber: "02",
        subject: `CN=${host}`,
        issuer: ca.subject,
        notBefore: new Date(Date.now() - 3600_000),
        notAfter: new Date(Date.now() + 86_400_000),
        signingAlgorithm: ALGORITHM,
        publicKey: own.publicKey,
        signingKey: keys.privateKey,
        extensions: [
          new x509.SubjectAlternativeNameExtension([
            { type: parseAddress(host) === undefined ? "dns" : "ip", value: host },
          ]),
        ],
      });
      return { cert: leaf.toString("pem"), key: await exportKey(own.privateKey) };
    },
  };
}

async function exportKey(key: webcrypto.CryptoKey): Promise<string> {
  const der = Buffer.from(await webcrypto.subtle.exportKey("pkcs8", key));
  return createPrivateKey({ key: der, format: "der", type: "pkcs8" })
    .export({ type: "pkcs8", format: "pem" })
    .toString();
}

/** Host names of the tests and the public addresses they stand at. */
export const HOSTS: Readonly<Record<string, string>> = {
  "api.example.com": "93.184.216.34",
  "other.example.com": "93.184.216.35",
  "plain.example.com": "93.184.216.36",
  "raw.example.com": "93.184.216.37",
  "internal.example.com": "10.1.2.3",
  "loop.example.com": "127.0.0.1",
};

export const EXE = process.execPath;

/** Rules used by most tests; the running Node is the allowed binary. */
export const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - host: api.example.com
        ports: [443]
        protocol: rest
        enforcement: enforce
        rules:
          - allow: {method: GET, path: "/**"}
          - allow: {method: POST, path: "/upload/**"}
          - allow: {method: POST, path: "/echo"}
          - allow: {method: TRACE, path: "/**"}
        deny_rules:
          - {method: GET, path: "/secret/**"}
      - {host: api.example.com, port: 80, protocol: rest, enforcement: enforce, access: read-only}
      - {host: plain.example.com, port: 80}
      - {host: raw.example.com, port: 9000, tls: skip}
      - {host: loop.example.com, port: 80}
      - {host: "**.wild.example.com", port: 443}
    binaries: [{path: "${EXE}"}]
`;

/** Node listens on descriptors; the handles below own them and must stay reachable, or collection would close them. */
const handles: unknown[] = [];

type Binding = Record<
  string,
  new (
    kind: number,
  ) => { bind(address: string, port: number, flags?: number): number; fd: number; getsockname(out: object): number }
>;

function binding(name: string): Binding {
  return (process as unknown as { binding(name: string): Binding }).binding(name);
}

/** A bound socket of this process, as init makes them. */
export function boundTcp(port = 0): { readonly fd: number; readonly port: number } {
  const handle = new (binding("tcp_wrap").TCP!)(1);
  if (handle.bind("127.0.0.1", port) !== 0) throw new Error("bind failed");
  return keep(handle);
}

export function boundUdp(): { readonly fd: number; readonly port: number } {
  const handle = new (binding("udp_wrap").UDP!)(0);
  if (handle.bind("127.0.0.1", 0, 0) !== 0) throw new Error("bind failed");
  return keep(handle);
}

function keep(handle: { fd: number; getsockname(out: object): number }): {
  readonly fd: number;
  readonly port: number;
} {
  handles.push(handle);
  const name = {} as { port: number };
  handle.getsockname(name);
  return { fd: handle.fd, port: name.port };
}

export class RecordedEvents implements EgressEvents {
  readonly connections: ConnectionEvent[] = [];
  readonly requests: RequestEvent[] = [];
  readonly findings: FindingEvent[] = [];
  connection(event: ConnectionEvent): void {
    this.connections.push(event);
  }
  request(event: RequestEvent): void {
    this.requests.push(event);
  }
  finding(event: FindingEvent): void {
    this.findings.push(event);
  }
  readonly limits: LimitEvent[] = [];
  limit(event: LimitEvent): void {
    this.limits.push(event);
  }
}

/** Hashes the runtime once for all fixtures of a file. */
const digests = new Map<number, Promise<string>>();
const worker = new WorkerHasher();
const sharedHasher: ExecutableHasher = {
  hash(fd, size) {
    let digest = digests.get(size);
    if (digest === undefined) {
      digest = worker.hash(fd, size);
      digests.set(size, digest);
    }
    return digest;
  },
  [Symbol.asyncDispose]: () => worker[Symbol.asyncDispose](),
};

export interface FixtureOptions {
  readonly policy?: string;
  readonly credentials?: CredentialSource;
  readonly owners?: () => readonly SocketOwner[];
  readonly deps?: Partial<SandboxEgressDeps>;
}

export class Fixture implements AsyncDisposable {
  readonly events = new RecordedEvents();
  readonly egress: SandboxEgress;
  readonly proxyPort: number;
  readonly dnsPort: number;
  readonly dnsTcpPort: number;
  readonly inspectionCa: TestCa;
  readonly originCa: TestCa;
  /** `address:port` → loopback port. */
  readonly routes: Map<string, number>;
  /** Original destination of the next captured connection. */
  captured: { address: string; port: number } | undefined;
  readonly capturePort: number;
  /** Connections that were dialled. */
  readonly dialled: string[];
  readonly #servers: (Server | HttpServer)[] = [];

  constructor(
    parts: Pick<
      Fixture,
      | "egress"
      | "proxyPort"
      | "dnsPort"
      | "dnsTcpPort"
      | "inspectionCa"
      | "originCa"
      | "routes"
      | "capturePort"
      | "events"
      | "dialled"
    >,
  ) {
    this.egress = parts.egress;
    this.proxyPort = parts.proxyPort;
    this.dnsPort = parts.dnsPort;
    this.dnsTcpPort = parts.dnsTcpPort;
    this.inspectionCa = parts.inspectionCa;
    this.originCa = parts.originCa;
    this.routes = parts.routes;
    this.capturePort = parts.capturePort;
    this.events = parts.events;
    this.dialled = parts.dialled;
  }

  static async create(options: FixtureOptions = {}): Promise<Fixture> {
    const [inspectionCa, originCa] = await Promise.all([createCa("Inspection"), createCa("Origin")]);
    const events = new RecordedEvents();
    const routes = new Map<string, number>();
    const dialled: string[] = [];
    const proxy = boundTcp();
    const capture = boundTcp();
    const udp = boundUdp();
    const tcp = boundTcp();
    const self: { fixture?: Fixture } = {};
    const egress = new SandboxEgress({
      boundary: {
        capture: {
          mode: "nft",
          tcp: [
            { fd: proxy.fd, family: 4, port: proxy.port },
            { fd: capture.fd, family: 4, port: capture.port },
          ],
          dnsUdp: udp.fd,
          dnsTcp: tcp.fd,
        },
        identify: async () => (options.owners ?? ownProcess)(),
      },
      events,
      leaves: await LeafMint.create(inspectionCa),
      trust: new TrustStore(() => []),
      hasher: sharedHasher,
      network: { additionalCaPem: originCa.certificatePem, resolvers: [], alwaysDenied: [] },
      proxyPort: proxy.port,
      // A defect fails the test run, wherever it happens.
      onError: (error) => {
        queueMicrotask(() => {
          throw error;
        });
      },
      tools: {
        originalDestination: () => {
          const captured = self.fixture?.captured;
          if (captured === undefined) throw new Error("not redirected");
          return captured;
        },
      },
      dial: (address, port, onread) => {
        dialled.push(`${address}:${port}`);
        const local = routes.get(`${address}:${port}`);
        const to = { host: "127.0.0.1", port: local ?? 1, noDelay: true, allowHalfOpen: true };
        return netConnect(onread === undefined ? to : { ...to, onread });
      },
      resolver: () => ({
        resolve: async (host) => {
          const address = parseAddress(host) ?? parseAddress(HOSTS[host] ?? "93.184.216.99");
          return [address!];
        },
      }),
      ...options.deps,
    });
    await egress.start();
    const fixture = new Fixture({
      egress,
      events,
      inspectionCa,
      originCa,
      routes,
      dialled,
      proxyPort: proxy.port,
      capturePort: capture.port,
      dnsPort: udp.port,
      dnsTcpPort: tcp.port,
    });
    self.fixture = fixture;
    fixture.publish(options.policy ?? POLICY, options.credentials);
    return fixture;
  }

  publish(policy: string, credentials: CredentialSource = NO_CREDENTIALS): void {
    this.egress.publish(generationInput(policy, credentials));
  }

  /** An HTTPS origin that the egress reaches as `host:port`. */
  async https(host: string, listener: RequestListener, port = 443): Promise<number> {
    const { cert, key } = await this.originCa.issue(host);
    return this.#serve(createHttpsServer({ cert, key, keepAliveTimeout: 60_000 }, listener), host, port);
  }

  async http(host: string, listener: RequestListener, port = 80): Promise<number> {
    return this.#serve(createHttpServer({ keepAliveTimeout: 60_000 }, listener), host, port);
  }

  /** An origin that speaks whatever `onSocket` says. */
  async tcp(host: string, port: number, onSocket: (socket: Socket) => void): Promise<number> {
    return this.#serve(createNetServer({ allowHalfOpen: true }, onSocket), host, port);
  }

  async #serve(server: Server | HttpServer, host: string, port: number): Promise<number> {
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    this.#servers.push(server);
    server.on("connection", (socket: Socket) => socket.on("error", () => undefined));
    const local = (server.address() as AddressInfo).port;
    this.routes.set(`${HOSTS[host] ?? host}:${port}`, local);
    return local;
  }

  /** A connection to the explicit proxy. */
  proxy(): Promise<Socket> {
    this.captured = undefined;
    return connected(netConnect({ host: "127.0.0.1", port: this.proxyPort, allowHalfOpen: true }));
  }

  /** A captured connection that wanted to reach `address:port`. */
  async capture(address: string, port: number): Promise<Socket> {
    this.captured = { address, port };
    return connected(netConnect({ host: "127.0.0.1", port: this.capturePort, allowHalfOpen: true }));
  }

  /** CONNECT through the explicit proxy; rejects with the answer when it is not 200. */
  async tunnel(authority: string): Promise<Socket> {
    const socket = await this.proxy();
    socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`);
    const answer = await readUntil(socket, "\r\n\r\n");
    if (!answer.startsWith("HTTP/1.1 200")) {
      const rest = await readAll(socket);
      throw new Error(answer + rest);
    }
    return socket;
  }

  /** TLS to an inspected host over `socket`, trusting the inspection CA alone. */
  tls(socket: Socket, servername: string, alpn: string[] = ["http/1.1"]): Promise<TLSSocket> {
    const secure = tlsConnect({ socket, servername, ca: this.inspectionCa.certificatePem, ALPNProtocols: alpn });
    return new Promise((resolve, reject) => {
      secure.once("secureConnect", () => resolve(secure));
      secure.on("error", reject);
      secure.once("close", () => reject(new Error("closed")));
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.egress[Symbol.asyncDispose]();
    for (const server of this.#servers) {
      if ("closeAllConnections" in server) server.closeAllConnections();
      server.close();
    }
  }
}

export function generationInput(policy: string, credentials: CredentialSource = NO_CREDENTIALS): GenerationInput {
  const parsed = parsePolicy(policy);
  if (!parsed.ok) throw new Error(JSON.stringify(parsed));
  return { policy: compilePolicy(parsed.policy), credentials };
}

/** This process as the owner, as a boundary would report it. */
export function ownProcess(exe = EXE): readonly SocketOwner[] {
  const exeFd = openSync(exe, "r");
  const { dev, ino, size, mtimeNs, ctimeNs } = fstatSync(exeFd, { bigint: true });
  return [{ pid: process.pid, exe, exeFd, exeKey: { dev, ino, size, mtimeNs, ctimeNs }, ancestors: [] }];
}

function connected(socket: Socket): Promise<Socket> {
  return new Promise((resolve, reject) => {
    socket.once("connect", () => {
      socket.off("error", reject);
      socket.on("error", () => undefined);
      resolve(socket);
    });
    socket.once("error", reject);
  });
}

/** Text up to and including `mark`; what follows stays in the socket. */
export function readUntil(socket: Socket, mark: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let bytes = Buffer.alloc(0);
    const done = (): void => {
      socket.off("data", onData);
      socket.off("close", onEnd);
      socket.off("end", onEnd);
      socket.pause();
    };
    const onData = (chunk: Buffer): void => {
      bytes = Buffer.concat([bytes, chunk]);
      const at = bytes.indexOf(mark);
      if (at === -1) return;
      done();
      const end = at + mark.length;
      if (bytes.length > end) socket.unshift(bytes.subarray(end));
      resolve(bytes.toString("latin1", 0, end));
    };
    const onEnd = (): void => {
      done();
      reject(new Error(`ended before the mark: ${bytes.toString("latin1")}`));
    };
    socket.on("data", onData);
    socket.on("close", onEnd);
    socket.on("end", onEnd);
    socket.resume();
  });
}

/** Everything until the connection ends, in order or not. */
export function readAll(socket: Socket): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    const finish = (): void => resolve(text);
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
    });
    socket.on("end", finish);
    socket.on("close", finish);
    socket.on("error", finish);
    if (socket.destroyed) finish();
    socket.resume();
  });
}

export interface SimpleResponse {
  readonly status: number;
  readonly head: string;
  readonly body: string;
}

/** One request and its response with Content-Length or chunked body, on a connection that stays open. */
export async function request(socket: Socket, text: string): Promise<SimpleResponse> {
  socket.write(text, "latin1");
  return readResponse(socket, text.startsWith("HEAD "));
}

export async function readResponse(socket: Socket, bodiless = false): Promise<SimpleResponse> {
  const head = await readUntil(socket, "\r\n\r\n");
  const status = Number(head.slice(9, 12));
  const length = /^content-length: (\d+)/im.exec(head);
  let body = "";
  if (bodiless) body = "";
  else if (length !== null) body = await readBytes(socket, Number(length[1]));
  else if (/^transfer-encoding: chunked/im.test(head)) {
    for (;;) {
      const size = Number.parseInt(await readUntil(socket, "\r\n"), 16);
      if (size === 0) {
        while ((await readUntil(socket, "\r\n")) !== "\r\n");
        break;
      }
      body += await readBytes(socket, size);
      await readUntil(socket, "\r\n");
    }
  }
  return { status, head, body };
}

function readBytes(socket: Socket, count: number): Promise<string> {
  if (count === 0) return Promise.resolve("");
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    let got = 0;
    const done = (): void => {
      socket.off("data", onData);
      socket.off("close", onEnd);
      socket.pause();
    };
    const onEnd = (): void => {
      done();
      reject(new Error(`ended after ${got} of ${count} bytes`));
    };
    const onData = (chunk: Buffer): void => {
      pieces.push(chunk);
      got += chunk.length;
      if (got < count) return;
      done();
      const all = Buffer.concat(pieces);
      if (got > count) socket.unshift(all.subarray(count));
      resolve(all.toString("latin1", 0, count));
    };
    socket.on("data", onData);
    socket.on("close", onEnd);
    socket.resume();
  });
}

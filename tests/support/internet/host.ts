import type dgram from "node:dgram";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import tls from "node:tls";
import { isIpv6 } from "./addresses.ts";
import type { CertificateKind, TestAuthority } from "./ca.ts";
import { type CommandRunner, commandsIn } from "./commands-in.ts";
import { GitBackend, type Repositories } from "./git-backend.ts";
import { HostNamespace, type PacketCounters } from "./namespace.ts";
import { type ConnectionRecord, type Received, type ReceivedConnection, Recorder } from "./record.ts";
import { answer, type HttpHandler } from "./responses.ts";

/** Handles a raw connection; `connection` records it. */
export type SocketHandler = (socket: net.Socket, connection: ReceivedConnection) => void | Promise<void>;

/** One listening port of a host. */
export type Service =
  /** HTTP/1.1 in the clear. */
  | { readonly kind: "http"; readonly port: number; readonly handler?: HttpHandler }
  /** HTTP/1.1 over TLS. */
  | {
      readonly kind: "https";
      readonly port: number;
      readonly handler?: HttpHandler;
      readonly certificate?: CertificateKind;
      readonly tls?: tls.TlsOptions;
    }
  /** Bytes over TCP, by default echoed. */
  | { readonly kind: "tcp"; readonly port: number; readonly handler?: SocketHandler }
  /** Bytes over TLS, by default echoed. */
  | {
      readonly kind: "tls";
      readonly port: number;
      readonly handler?: SocketHandler;
      readonly certificate?: CertificateKind;
      readonly tls?: tls.TlsOptions;
    }
  /** Accepts, records and never answers. */
  | { readonly kind: "silent"; readonly port: number }
  /** Records datagrams, and echoes them when asked to. */
  | { readonly kind: "udp"; readonly port: number; readonly echo?: boolean };

export interface HostOptions {
  /** Further names, in DNS and in the certificate. */
  readonly names?: readonly string[];
  /**
   * In place of the next free pair. Any address may be taken, private and link-local ones too (attacks go there), and
   * a prefix means every address in it.
   */
  readonly addresses?: readonly string[];
  /** False keeps the names out of DNS. */
  readonly register?: boolean;
  /** Default: HTTPS on 443, HTTP on 80, TCP echo on 7. */
  readonly services?: readonly Service[];
  /** For every HTTP and HTTPS service without its own; default: the table in responses.ts. */
  readonly handler?: HttpHandler;
  /** Served as `/NAME.git` on every HTTP and HTTPS service without its own handler. */
  readonly repositories?: Repositories;
  /** Of every TLS service without its own. */
  readonly certificate?: CertificateKind;
}

const DEFAULT_SERVICES: readonly Service[] = [
  { kind: "https", port: 443 },
  { kind: "http", port: 80 },
  { kind: "tcp", port: 7 },
];

const echoSocket: SocketHandler = (socket) => {
  socket.pipe(socket);
};

/**
 * One machine of the test internet: a network namespace with servers, which run in the test process. Nothing may
 * block that process while a client waits (no `execFileSync`).
 */
export class TestHost implements AsyncDisposable {
  readonly name: string;
  readonly addresses: readonly string[];
  readonly #namespace: HostNamespace;
  readonly #authority: TestAuthority;
  readonly #options: HostOptions;
  readonly #recorder = new Recorder();
  readonly #servers: (net.Server | dgram.Socket)[] = [];
  readonly #sockets = new Set<net.Socket>();
  #git: GitBackend | undefined;
  /** Commands from this host's place in the network. */
  readonly commands: CommandRunner;

  private constructor(
    name: string,
    addresses: readonly string[],
    namespace: HostNamespace,
    authority: TestAuthority,
    options: HostOptions,
    namesFolder: string,
  ) {
    this.name = name;
    this.addresses = addresses;
    this.#namespace = namespace;
    this.#authority = authority;
    this.#options = options;
    this.commands = commandsIn(namesFolder, namespace.pid);
  }

  /** Used by `TestInternet.host`. */
  static async create(
    name: string,
    addresses: readonly string[],
    link: string,
    authority: TestAuthority,
    namesFolder: string,
    options: HostOptions,
  ): Promise<TestHost> {
    const namespace = await HostNamespace.create(link, addresses);
    const host = new TestHost(name, addresses, namespace, authority, options, namesFolder);
    try {
      if (options.repositories) host.#git = await GitBackend.create(options.repositories);
      for (const service of options.services ?? DEFAULT_SERVICES) await host.serve(service);
      return host;
    } catch (error) {
      await host[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** The first IPv4 address. */
  get ipv4(): string {
    return this.addresses.find((address) => !isIpv6(address)) ?? "";
  }

  /** The first IPv6 address. */
  get ipv6(): string {
    return this.addresses.find(isIpv6) ?? "";
  }

  /** Where the served repositories lie: to look at what a push changed. */
  get repositoryFolder(): string | undefined {
    return this.#git?.folder;
  }

  /** `https://NAME` and a path. */
  url(path = "/", scheme: "https" | "http" = "https"): string {
    return new URL(path, `${scheme}://${this.name}`).href;
  }

  /** What arrived so far. */
  received(): Received {
    return this.#recorder.received();
  }

  clearReceived(): void {
    this.#recorder.clear();
  }

  /** What arrived at the host's kernel, on any port and of any protocol. */
  packets(): PacketCounters {
    return this.#namespace.counters();
  }

  /** Ends every open connection, as a crash of the host would. */
  dropConnections(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  /** Opens one more port. */
  async serve(service: Service): Promise<void> {
    const { port } = service;
    if (service.kind === "udp") {
      const socket = await this.#namespace.openUdp(port);
      socket.on("message", (data, peer) => {
        this.#recorder.datagram(port, peer.address, data);
        if (service.echo) socket.send(data, peer.port, peer.address, () => {});
      });
      this.#servers.push(socket);
      return;
    }
    const server = await this.#server(service);
    // Before the server's own listener: what it looks at must already be recorded.
    server.prependListener("connection", (socket: net.Socket) => {
      this.#recorder.connection(port, socket);
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket)).on("error", () => {});
    });
    const listening = await this.#namespace.openTcp(port);
    await new Promise<void>((done, fail) => {
      server.once("error", fail);
      server.listen(listening, done);
    });
    this.#servers.push(server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    for (const server of this.#servers) server.close();
    this.#git?.[Symbol.dispose]();
    await this.#namespace[Symbol.asyncDispose]();
  }

  async #server(service: Exclude<Service, { kind: "udp" }>): Promise<net.Server> {
    switch (service.kind) {
      case "http":
        return this.#httpServer(http.createServer(), service.handler);
      case "https": {
        const server = https.createServer({
          ...(await this.#tlsOptions(service)),
          ALPNProtocols: ["http/1.1"],
          ...service.tls,
        });
        this.#recordTls(server, service.port);
        return this.#httpServer(server, service.handler);
      }
      case "tcp":
        return this.#rawServer(net.createServer({ allowHalfOpen: true }), "connection", service.handler ?? echoSocket);
      case "tls": {
        const server = tls.createServer({ ...(await this.#tlsOptions(service)), ...service.tls });
        this.#recordTls(server, service.port);
        return this.#rawServer(server, "secureConnection", service.handler ?? echoSocket);
      }
      case "silent":
        return this.#rawServer(net.createServer(), "connection", () => {});
    }
  }

  async #tlsOptions(service: { readonly certificate?: CertificateKind }): Promise<tls.TlsOptions> {
    const addresses = this.addresses.filter((address) => !address.includes("/"));
    const names = [this.name, ...(this.#options.names ?? []), ...addresses];
    return await this.#authority.issue(names, service.certificate ?? this.#options.certificate);
  }

  #recordTls(server: tls.Server, port: number): void {
    server.on("secureConnection", (socket) => {
      this.#recorder.secured(port, socket);
      socket.on("error", () => {});
    });
    server.on("tlsClientError", (error, socket) => this.#recorder.handshakeFailed(port, socket, error.message));
  }

  #rawServer(server: net.Server, event: "connection" | "secureConnection", handler: SocketHandler): net.Server {
    server.on(event as "connection", (socket: net.Socket) => {
      const record = this.#recorder.of(socket) as ConnectionRecord;
      socket.on("error", () => {});
      socket.on("data", (chunk: Buffer) => record.keep(chunk));
      Promise.resolve(handler(socket, record)).catch((error: Error) => socket.destroy(error));
    });
    return server;
  }

  #httpServer(server: http.Server, own: HttpHandler | undefined): http.Server {
    server.keepAliveTimeout = 60_000;
    server.on("request", (request, response) => {
      const record = this.#recorder.request(request);
      const context = { connection: this.#recorder.of(request.socket), record };
      const git = this.#git;
      const handler =
        own ??
        (git?.serves(request.url ?? "") ? (...[req, res]) => git.handle(req, res) : (this.#options.handler ?? answer));
      Promise.resolve()
        .then(() => handler(request, response, context))
        .catch((error: unknown) => {
          if (response.headersSent) return response.destroy();
          response.writeHead(500, { "content-type": "text/plain" });
          return response.end(`test host: ${error instanceof Error ? error.message : error}\n`);
        });
    });
    return server;
  }
}

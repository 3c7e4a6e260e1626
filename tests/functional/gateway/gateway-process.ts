import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { request } from "node:http";
import { connect } from "node:net";
import { join, resolve } from "node:path";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { OpenShell } from "@openshell/api";
import { type GatewayPaths, gatewayPaths } from "@openshell/base";
import type { GatewayRecord, ReadyLine } from "@openshell/base/gateway-record.ts";
import { GATEWAY_NODE_OPTIONS } from "@openshell/cli/gateway/start.ts";
import { killGroup, spawnCommand } from "../../support/command.ts";
import { TestHome } from "../../support/home.ts";

/** The gateway's program itself, without the command line: started, called and killed as the tests need it. */

const repository = resolve(import.meta.dirname, "../../..");
const START_LIMIT_MS = 20_000;

/** Folder of the bundles: OPENSHELL_TEST_DIST, else the one that the launcher made last. */
export function buildFolder(): string {
  const named = process.env["OPENSHELL_TEST_DIST"];
  if (named !== undefined) return named;
  const stamp = join(repository, "dist", "stamp");
  if (!existsSync(stamp)) throw new Error("no build: run the tests with node tests/run.ts");
  return join(repository, "dist", readFileSync(stamp, "utf8").split(" ")[0]!);
}

export interface StartOutcome {
  readonly line: ReadyLine;
  /** From the start of the process to its word of readiness. Milliseconds. */
  readonly ms: number;
}

/** What a client shows of itself; by default, the certificate of this gateway. */
export interface ClientFiles {
  readonly withCertificate?: boolean;
  readonly cert?: string;
  readonly key?: string;
}

/** A home with one gateway in it, running or not. */
export class GatewayProcess implements AsyncDisposable {
  readonly home: TestHome;
  readonly name: string;
  readonly paths: GatewayPaths;
  /** Folder of the bundles. */
  build = buildFolder();
  #child: ChildProcess | undefined;
  #stderr: Promise<string> = Promise.resolve("");
  readonly #managers: Http2SessionManager[] = [];

  constructor(name = "t") {
    this.home = TestHome.create();
    this.name = name;
    const { XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR } = this.home.env;
    const env = { XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR };
    this.paths = gatewayPaths(name, { uid: process.getuid!(), env, home: this.home.env["HOME"]! });
  }

  get userSocket(): string {
    return join(this.paths.runtime, "user.sock");
  }

  get clientFolder(): string {
    return join(this.home.config, "openshell", "gateways", this.name);
  }

  get pid(): number {
    return this.#child!.pid!;
  }

  /** Starts it and waits for its word of readiness; `ready: false` is an outcome like another. */
  async start(args: readonly string[] = [], env: Record<string, string> = {}): Promise<StartOutcome> {
    const startedAt = performance.now();
    const program = join(this.build, "gateway.mjs");
    const serve = ["serve", "--name", this.name, "--ready-fd", "3", ...args];
    const options = ["--disable-sigusr1", ...GATEWAY_NODE_OPTIONS];
    const child = spawnCommand([process.execPath, ...options, program, ...serve], {
      env: { ...this.home.env, ...env },
      stdio: ["ignore", "ignore", "pipe", "pipe"],
    });
    this.#stderr = text(child.stderr!);
    const timer = setTimeout(() => killGroup(child), START_LIMIT_MS);
    const said = await text(child.stdio[3] as Readable);
    clearTimeout(timer);
    if (said === "") throw new Error(`the gateway said nothing: ${await this.#stderr}`);
    const line = JSON.parse(said) as ReadyLine;
    if (line.ready) this.#child = child;
    else if (child.exitCode === null) await once(child, "exit");
    return { line, ms: performance.now() - startedAt };
  }

  /** What the last one wrote to its standard error; resolves when it has ended. */
  get stderr(): Promise<string> {
    return this.#stderr;
  }

  /** As `start`; throws unless it is ready. */
  async started(args: readonly string[] = [], env: Record<string, string> = {}): Promise<GatewayRecord> {
    const { line } = await this.start(args, env);
    if (!line.ready) throw new Error(`${line.code}: ${line.message}. ${line.next}`);
    return line.record;
  }

  /** Sends a signal and waits for the end. Resolves with exit code and signal. */
  async end(signal: NodeJS.Signals = "SIGTERM"): Promise<[number | null, NodeJS.Signals | null]> {
    const child = this.#child!;
    if (child.exitCode !== null || child.signalCode !== null) return [child.exitCode, child.signalCode];
    const ended = once(child, "exit");
    child.kill(signal);
    return (await ended) as [number | null, NodeJS.Signals | null];
  }

  /** Resolves with the exit status of an end that somebody else caused. */
  async exited(): Promise<number | null> {
    const child = this.#child!;
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
    return child.exitCode;
  }

  /** One HTTP/1.1 request on the users' socket. */
  async http(
    path: string,
    method = "GET",
    headers: Record<string, string> = {},
    body = "",
  ): Promise<{ readonly status: number; readonly body: string }> {
    const sent = request({ socketPath: this.userSocket, path, method, headers }).end(body);
    const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
    return { status: response.statusCode!, body: await text(response) };
  }

  /** gRPC over the users' socket. */
  local(): Client<typeof OpenShell> {
    return createClient(OpenShell, this.localTransport());
  }

  /** As `local`, for any service. */
  localTransport(): Transport {
    const manager = new Http2SessionManager("http://local", {}, { createConnection: () => connect(this.userSocket) });
    this.#managers.push(manager);
    return createGrpcTransport({ baseUrl: "http://local", sessionManager: manager });
  }

  /** gRPC over TCP with exactly the files that an SDK finds. */
  tls(files: ClientFiles = {}): Client<typeof OpenShell> {
    return createClient(OpenShell, this.tlsTransport(files));
  }

  /** As `tls`, for any service. */
  tlsTransport(files: ClientFiles = {}): Transport {
    const { gateway_endpoint: endpoint } = JSON.parse(this.read("metadata.json")) as { gateway_endpoint: string };
    const identity =
      files.withCertificate === false
        ? {}
        : { cert: files.cert ?? this.read("mtls/tls.crt"), key: files.key ?? this.read("mtls/tls.key") };
    const manager = new Http2SessionManager(endpoint, {}, { ca: this.read("mtls/ca.crt"), ...identity });
    this.#managers.push(manager);
    return createGrpcTransport({ baseUrl: endpoint, sessionManager: manager });
  }

  read(file: string): string {
    return readFileSync(join(this.clientFolder, file), "utf8");
  }

  /** Everything that the gateway's log and its standard error say. */
  async log(): Promise<string> {
    return readFileSync(join(this.paths.logs, "gateway.log"), "utf8");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const manager of this.#managers) manager.abort();
    if (this.#child !== undefined) await this.end("SIGKILL");
    this.home[Symbol.dispose]();
  }
}

import { readdirSync, readFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { type Client, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { OpenShell, type Sandbox, SandboxPhase, type SandboxPolicy } from "@openshell/api";
import { parsePolicy } from "@openshell/policy/parse.ts";
import { policyToProto } from "@openshell/policy/proto.ts";
import type { TestInternet } from "./internet/index.ts";
import { type OpenShellOptions, TestOpenShell } from "./openshell.ts";

/**
 * The public API for tests: a typed client over the users' socket of a test's own gateway, and what is done with it
 * again and again (create a sandbox, wait for it, run something in it, delete it).
 */

export const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
const READY_TIMEOUT_MS = 60_000;
const EXEC_TIMEOUT_MS = 30_000;
/** Requests to a gateway that another process may be starting. */
/** Of each stream, from its beginning. */
const KEPT_OUTPUT_BYTES = 64 * 1024 * 1024;
const POLL_MS = 20;

/** The folders of the gateway that a test home holds; one gateway, called as the command line calls it by default. */
export interface GatewayFolders {
  readonly name: string;
  readonly runtime: string;
  readonly state: string;
  readonly userSocket: string;
  readonly hostSocket: string;
}

export interface SandboxOptions {
  readonly name?: string;
  /** YAML. Absent: the gateway's default, which allows no connection. */
  readonly policy?: string;
  readonly providers?: readonly string[];
  /** `SRC:DST[:ro]`. */
  readonly volumes?: readonly string[];
  /** Folder or archive of a root file system. */
  readonly root?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Limit, such as `512Mi`. */
  readonly memory?: string;
  /** Main process; default: one that sleeps. */
  readonly command?: readonly string[];
}

export interface ExecOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: string | Uint8Array;
  readonly workdir?: string;
  readonly tty?: boolean;
  /** After which the call is given up and fails. */
  readonly timeoutMs?: number;
}

export interface ExecResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Buffer;
  readonly exitCode: number;
}

/** The policy that YAML text says, as requests carry it; throws with every violation. */
export function policyMessage(text: string): SandboxPolicy {
  const parsed = parsePolicy(text);
  if (!parsed.ok) throw new Error(parsed.violations.map((one) => `${one.path}: ${one.message}`).join("\n"));
  return policyToProto(parsed.policy);
}

function localConfig({ root, volumes }: SandboxOptions): { root?: string; volumes?: string[] } {
  return { ...(root === undefined ? {} : { root }), ...(volumes === undefined ? {} : { volumes: [...volumes] }) };
}

/** A client on a gateway's port, with the certificate that its user has. */
export function certificateClient(gateway: TestGateway): Client<typeof OpenShell> {
  const registered = join(gateway.user.home.config, "openshell/gateways", gateway.folders.name);
  const read = (name: string): Buffer => readFileSync(join(registered, "mtls", name));
  const { gateway_endpoint: baseUrl } = JSON.parse(readFileSync(join(registered, "metadata.json"), "utf8")) as {
    gateway_endpoint: string;
  };
  const nodeOptions = { key: read("tls.key"), cert: read("tls.crt"), ca: read("ca.crt"), rejectUnauthorized: true };
  return createClient(OpenShell, createConnectTransport({ baseUrl, httpVersion: "1.1", nodeOptions }));
}

function templateOf(options: SandboxOptions): { template?: { driverConfig?: JsonObject; resources?: JsonObject } } {
  const { root, volumes, memory } = options;
  if (root === undefined && volumes === undefined && memory === undefined) return {};
  const driverConfig =
    root === undefined && volumes === undefined ? {} : { driverConfig: { local: localConfig(options) } };
  const resources = memory === undefined ? {} : { resources: { limits: { memory } } };
  return { template: { ...driverConfig, ...resources } };
}

/** A gateway in the test internet, driven through its API. */
export class TestGateway implements AsyncDisposable {
  readonly client: Client<typeof OpenShell>;
  readonly user: TestOpenShell;
  readonly folders: GatewayFolders;
  readonly pid: number;
  readonly #sandboxes = new Set<TestSandbox>();

  private constructor(user: TestOpenShell, folders: GatewayFolders, pid: number) {
    this.user = user;
    this.folders = folders;
    this.pid = pid;
    this.client = createClient(
      OpenShell,
      createConnectTransport({
        baseUrl: "http://gateway",
        httpVersion: "1.1",
        nodeOptions: { socketPath: folders.userSocket } as object,
      }),
    );
  }

  /** Starts a gateway as a new user of `net` would, with the command line. */
  static async start(net: TestInternet, options: OpenShellOptions = {}): Promise<TestGateway> {
    const user = TestOpenShell.create(net, options);
    try {
      await user.ok(["gateway", "start"], { timeoutMs: 60_000 });
      const status = await localStatus(user.home.runtime);
      const name = status.record.name;
      const runtime = join(user.home.runtime, "openshell", name);
      const folders: GatewayFolders = {
        name,
        runtime,
        state: join(user.home.state, "openshell", name),
        userSocket: join(runtime, "user.sock"),
        hostSocket: join(runtime, "host.sock"),
      };
      return new TestGateway(user, folders, status.record.pid);
    } catch (error) {
      await user[Symbol.asyncDispose]().catch(() => {});
      throw error;
    }
  }

  /** Pids of its supervisor hosts. */
  hosts(): readonly number[] {
    return this.user.processes().filter((pid) => {
      const [, ...argv] = commandLine(pid);
      return argv.some((part) => part.endsWith("/host.mjs") || part.endsWith("/supervisor/src/main.ts"));
    });
  }

  async createProvider(name: string, credentials: Readonly<Record<string, string>>, type = "generic"): Promise<void> {
    await this.client.createProvider({
      workspaceScope: SCOPE,
      provider: { metadata: { name }, type, credentials: { ...credentials } },
    });
  }

  /** Creates a sandbox and waits until it is READY. */
  async create(options: SandboxOptions = {}): Promise<TestSandbox> {
    const { sandbox } = await this.client.createSandbox({
      workspaceScope: SCOPE,
      ...(options.name === undefined ? {} : { name: options.name }),
      spec: {
        command: [...(options.command ?? ["sleep", "86400"])],
        environment: { ...options.env },
        providers: [...(options.providers ?? [])],
        ...(options.policy === undefined ? {} : { policy: policyMessage(options.policy) }),
        ...templateOf(options),
      },
    });
    const made = new TestSandbox(this, sandbox!.metadata!.name, sandbox!.metadata!.id);
    this.#sandboxes.add(made);
    await made.phase(SandboxPhase.READY);
    return made;
  }

  /** Called by a sandbox that was deleted. */
  forget(sandbox: TestSandbox): void {
    this.#sandboxes.delete(sandbox);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const sandbox of [...this.#sandboxes]) await sandbox.delete().catch(() => {});
    await this.user[Symbol.asyncDispose]();
  }
}

/** One sandbox of a `TestGateway`. */
export class TestSandbox implements AsyncDisposable {
  readonly name: string;
  readonly id: string;
  readonly gateway: TestGateway;

  constructor(gateway: TestGateway, name: string, id: string) {
    this.gateway = gateway;
    this.name = name;
    this.id = id;
  }

  async get(): Promise<Sandbox> {
    return (await this.gateway.client.getSandbox({ workspaceScope: SCOPE, name: this.name })).sandbox!;
  }

  /** Waits for a phase; throws with the conditions when another final one comes, or none in time. */
  async phase(wanted: SandboxPhase, timeoutMs = READY_TIMEOUT_MS): Promise<Sandbox> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const sandbox = await this.get();
      const phase = sandbox.status?.phase ?? SandboxPhase.UNSPECIFIED;
      if (phase === wanted) return sandbox;
      if (phase === SandboxPhase.ERROR || performance.now() > end) {
        const conditions = (sandbox.status?.conditions ?? []).map(({ type, status, reason, message }) =>
          [type, status, reason, message].join(" "),
        );
        throw new Error(`sandbox ${this.name} is ${SandboxPhase[phase]}:\n  ${conditions.join("\n  ")}`);
      }
      await sleep(POLL_MS);
    }
  }

  /** Runs `argv` without a login shell to its end. */
  async exec(argv: readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    const stdin = options.stdin ?? "";
    const events = this.gateway.client.execSandbox(
      {
        workspaceScope: SCOPE,
        sandbox: this.name,
        command: [...argv],
        environment: { ...options.env },
        workdir: options.workdir ?? "",
        stdin: typeof stdin === "string" ? Buffer.from(stdin) : stdin,
        tty: options.tty ?? false,
        noLoginShell: true,
      },
      { timeoutMs: options.timeoutMs ?? EXEC_TIMEOUT_MS },
    );
    const output: Record<"stdout" | "stderr", Uint8Array[]> = { stdout: [], stderr: [] };
    const kept = { stdout: 0, stderr: 0 };
    let exitCode: number | undefined;
    for await (const { payload } of events) {
      if (payload.case === "stdout" || payload.case === "stderr") {
        // A flood is read to its end without being kept.
        if (kept[payload.case] < KEPT_OUTPUT_BYTES) output[payload.case].push(payload.value.data);
        kept[payload.case] += payload.value.data.length;
      } else if (payload.case === "exit") exitCode = payload.value.exitCode;
    }
    if (exitCode === undefined) throw new Error(`${argv[0]} in ${this.name}: no exit status`);
    const stdoutBytes = Buffer.concat(output.stdout);
    return {
      stdoutBytes,
      stdout: stdoutBytes.toString(),
      stderr: Buffer.concat(output.stderr).toString(),
      exitCode,
    };
  }

  /** Runs a shell script. */
  sh(script: string, options: ExecOptions = {}): Promise<ExecResult> {
    return this.exec(["/bin/sh", "-c", script], options);
  }

  /** Lines of its log at the gateway. */
  async logs(): Promise<readonly string[]> {
    const { logs } = await this.gateway.client.getSandboxLogs({ workspaceScope: SCOPE, sandbox: this.name });
    return logs.map((line) => `${line.level} ${line.message}`);
  }

  /** Waits for a line that matches. */
  async logged(pattern: RegExp, timeoutMs = 5_000): Promise<string> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const lines = await this.logs();
      const found = lines.find((line) => pattern.test(line));
      if (found !== undefined) return found;
      if (performance.now() > end)
        throw new Error(`no line ${pattern} in the log:\n  ${lines.slice(-20).join("\n  ")}`);
      await sleep(50);
    }
  }

  async setPolicy(text: string): Promise<void> {
    await this.gateway.client.updateConfig({
      workspaceScope: SCOPE,
      sandbox: this.name,
      policy: policyMessage(text),
    } as never);
  }

  /** Deletes it and waits until it is gone. */
  async delete(timeoutMs = READY_TIMEOUT_MS): Promise<void> {
    this.gateway.forget(this);
    await this.gateway.client.deleteSandbox({ workspaceScope: SCOPE, name: this.name, allowMissing: true });
    const end = performance.now() + timeoutMs;
    for (;;) {
      const gone = await this.get().then(
        () => false,
        () => true,
      );
      if (gone) return;
      if (performance.now() > end) throw new Error(`sandbox ${this.name} was not deleted in time`);
      await sleep(POLL_MS);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete();
  }
}

interface LocalStatus {
  readonly record: { readonly name: string; readonly pid: number; readonly endpoint: string };
}

function commandLine(pid: number): readonly string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

/** What the gateway of this runtime folder says about itself on its users' socket. */
async function localStatus(runtime: string): Promise<LocalStatus> {
  const [name] = readdirSync(join(runtime, "openshell"));
  const body = await rawHttp(join(runtime, "openshell", name ?? "", "user.sock"), "GET /local/status HTTP/1.1");
  return JSON.parse(body.slice(body.indexOf("{"), body.lastIndexOf("}") + 1)) as LocalStatus;
}

/** One HTTP/1.1 request over a unix socket, by hand; resolves with everything that came back. */
export function rawHttp(socketPath: string, line: string, headers = "", body = ""): Promise<string> {
  return new Promise((done, fail) => {
    const parts: Buffer[] = [];
    const socket = net.connect(socketPath, () => {
      socket.write(`${line}\r\nHost: gateway\r\nConnection: close\r\n${headers}\r\n${body}`);
    });
    socket.on("data", (part: Buffer) => parts.push(part));
    socket.on("error", fail);
    socket.on("close", () => done(Buffer.concat(parts).toString()));
    socket.setTimeout(10_000, () => socket.destroy(new Error("no answer")));
  });
}

import { spawnSync } from "node:child_process";
import { randomBytes, randomUUID } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import net from "node:net";
import { basename, dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { OpenShell, type Sandbox, SandboxPhase } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { createLaneTransport, type LaneTransport } from "@openshell/rpc";
import type { TestInternet } from "../support/internet/index.ts";
import { mode } from "../support/mode.ts";
import { TestOpenShell } from "../support/openshell.ts";
import type { Counts } from "./counts.ts";
import { Model } from "./model.ts";
import { EXTRA_PROVIDER, ownProvider, type Schedule, SHARED_PROVIDER } from "./schedule.ts";
import { HOST_OF_SHARED, hostOfVariant, secretOf } from "./sites.ts";

/** One gateway with a home of its own, the clients that use it, and what they were told. */

export const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
/** Everything is as it must be so long after the last disturbance: a strike, its healing, a start of a gateway. Milliseconds. */
export const CONVERGENCE_MS = 15_000;
/** One attempt of a call. Milliseconds. */
const CALL_MS = 15_000;
/** Attempts of one operation together: faults of half a second, and starts of a gateway, lie within it. Milliseconds. */
const OPERATION_MS = 30_000;
const RETRY_MS = 40;
const POLL_MS = 15;
/** The gateway writes pino's levels as words, hosts as numbers. */
const WARNINGS: ReadonlySet<unknown> = new Set(["warn", "error", "fatal", 40, 50, 60]);
const SHOWN_WORDS = 25;
const DISK = "size=48m,mode=700";

/** Answers after which a client tries again with the same request id. */
const PASSING: ReadonlySet<Code> = new Set([
  Code.Unavailable,
  Code.DeadlineExceeded,
  Code.ResourceExhausted,
  Code.Aborted,
]);

export interface WorldOptions {
  readonly net: TestInternet;
  readonly schedule: Schedule;
  readonly counts: Counts;
  readonly cli: readonly string[];
  /** Folder of the programs whose clocks can be set. */
  readonly programs: string;
  /** Added to gateway.toml. */
  readonly config?: string;
  /** Socket that hosts dial in place of the gateway's, from the folder of the home's own. */
  readonly hostSocket?: (home: string) => string;
}

export type Api = Client<typeof OpenShell>;

/** What a client does at the moment. */
export interface Step {
  readonly operation: string;
  /** `call` until it is answered, then what is waited for. */
  readonly step: string;
  readonly target: string;
}

export class World implements AsyncDisposable {
  readonly schedule: Schedule;
  readonly model: Model;
  readonly counts: Counts;
  readonly user: TestOpenShell;
  readonly runtime: string;
  readonly state: string;
  /** Values of credentials by serial number: what the test's servers know them by. */
  readonly salt = randomBytes(8).toString("hex");
  /** What each client does. */
  readonly steps = new Map<number, Step>();
  readonly trace: string[] = [];
  readonly #startedAt = performance.now();
  readonly #transports: LaneTransport[] = [];
  readonly #programs: string;
  readonly #hostSocket: string | undefined;
  #reviving: Promise<void> | undefined;
  #mounted = false;
  revivals = 0;
  #disturbedAt = 0;

  private constructor({ net: internet, schedule, counts, cli, programs, config, hostSocket }: WorldOptions) {
    this.schedule = schedule;
    this.counts = counts;
    this.model = new Model(schedule.clients.length);
    this.user = TestOpenShell.create(internet, {
      gateway: { extra: `[openshell.supervisor]\nplacement = "${schedule.placement}"\n${config ?? ""}` },
      command: cli,
    });
    // Below the home: by their paths the programs' processes are known to be this run's, whoever their parent is.
    this.#programs = this.user.home.path("build", basename(programs));
    mkdirSync(dirname(this.#programs), { mode: 0o711 });
    symlinkSync(programs, this.#programs);
    const name = "openshell";
    this.#hostSocket = hostSocket?.(this.user.home.folder);
    this.runtime = join(this.user.home.runtime, "openshell", name);
    this.state = join(this.user.home.state, "openshell", name);
  }

  /** Starts the gateway and makes the providers. */
  static async start(options: WorldOptions): Promise<World> {
    const world = new World(options);
    try {
      await world.#begin();
      return world;
    } catch (error) {
      await world[Symbol.asyncDispose]().catch(() => {});
      throw error;
    }
  }

  async #begin(): Promise<void> {
    if (mode === "root") {
      const made = spawnSync("mount", ["-t", "tmpfs", "-o", DISK, "faults", this.user.home.state]);
      if (made.status !== 0) throw new Error(`mount: ${made.stderr}`);
      this.#mounted = true;
    }
    for (const part of ["gateway", "host"] as const) this.setClock(part, 0);
    await this.user.ok(["gateway", "start"], { timeoutMs: 30_000, env: this.#variables() });
    const api = this.client();
    for (const [name, serial] of this.model.serials) {
      const credentials = { [keyOf(name)]: secretOf(this.salt, name, serial) };
      const provider = { metadata: { name }, type: "generic", credentials, config: { serial: String(serial) } };
      await api.createProvider({ workspaceScope: SCOPE, provider }, { timeoutMs: CALL_MS });
    }
  }

  #variables(): Record<string, string> {
    return {
      OPENSHELL_DIST: this.#programs,
      OPENSHELL_TEST_CLOCK: this.user.home.path("clock"),
      ...(this.#hostSocket === undefined ? {} : { OPENSHELL_TEST_HOST_SOCKET: this.#hostSocket }),
    };
  }

  /** Moves the wall clock of one part's processes. Milliseconds. */
  setClock(part: "gateway" | "host", offsetMs: number): void {
    // In place, and of one length: the file is read through descriptors that stay open.
    writeFileSync(`${this.user.home.path("clock")}.${part}`, String(offsetMs).padEnd(20), { flag: "a+" });
    writeFileSync(`${this.user.home.path("clock")}.${part}`, String(offsetMs).padEnd(20), { flag: "r+" });
  }

  /** Something was done to it just now: limits of time count from here. */
  disturb(): void {
    this.#disturbedAt = performance.now();
  }

  /** Whether so much time has gone by since `startedAt`, and since the last disturbance. */
  late(startedAt: number, limitMs: number): boolean {
    return this.since(startedAt) > limitMs;
  }

  /** Time since `startedAt`, and since the last disturbance. Milliseconds. */
  since(startedAt: number): number {
    return performance.now() - Math.max(startedAt, this.#disturbedAt);
  }

  /** Adds a line to the trace; one that would repeat the last is left out. */
  note(text: string): void {
    if (this.trace.at(-1)?.endsWith(`  ${text}`) || this.trace.at(-2)?.endsWith(`  ${text}`)) return;
    this.trace.push(`${(performance.now() - this.#startedAt).toFixed(0).padStart(6)} ms  ${text}`);
  }

  /** A connection of a client's own. */
  client(): Api {
    const transport = createLaneTransport({ dial: () => net.connect(join(this.runtime, "user.sock")) });
    this.#transports.push(transport);
    return createClient(OpenShell, transport);
  }

  /** What a person does whose command found no gateway: types another one. One at a time. */
  revive(): Promise<void> {
    this.#reviving ??= (async () => {
      this.revivals++;
      const { exitCode, stderr } = await this.user.run(["sandbox", "list", "--names"], {
        timeoutMs: 30_000,
        env: this.#variables(),
      });
      const [first = ""] = stderr.split("\n").filter((line) => line.startsWith("error"));
      this.note(`a command line: exit ${exitCode} ${first}`);
    })().finally(() => {
      this.disturb();
      this.#reviving = undefined;
    });
    return this.#reviving;
  }

  /** Whether somebody answers on the users' socket. */
  async serving(): Promise<boolean> {
    return await new Promise((resolve) => {
      const socket = net.connect(join(this.runtime, "user.sock"), () => {
        socket.destroy();
        resolve(true);
      });
      socket.on("error", () => resolve(false));
    });
  }

  /** Repeats a call, as one that has one request id, until the gateway gives an answer that stands. */
  async attempt<T>(what: string, call: (requestId: string, signal: { timeoutMs: number }) => Promise<T>): Promise<T> {
    const requestId = randomUUID();
    const startedAt = performance.now();
    for (;;) {
      try {
        return await call(requestId, { timeoutMs: CALL_MS });
      } catch (error) {
        const failure = ConnectError.from(error);
        this.note(`${what}: ${Code[failure.code]} ${reasonOf(failure)}: ${failure.rawMessage}`);
        if (!PASSING.has(failure.code)) throw failure;
        if (this.late(startedAt, OPERATION_MS))
          throw new Error(`${what}: not answered within ${OPERATION_MS} ms`, { cause: failure });
      }
      await sleep(RETRY_MS);
      if (!(await this.serving())) await this.revive();
    }
  }

  /** The sandbox now; undefined when there is none. */
  async look(api: Api, name: string): Promise<Sandbox | undefined> {
    try {
      return await this.attempt(`get ${name}`, async (_id, signal) => {
        return (await api.getSandbox({ workspaceScope: SCOPE, name }, signal)).sandbox;
      });
    } catch (error) {
      if ((error as ConnectError).code === Code.NotFound) return undefined;
      throw error;
    }
  }

  /** Looks until `done`; throws with what it saw last. */
  async until(
    api: Api,
    name: string,
    wanted: string,
    done: (sandbox: Sandbox | undefined) => boolean,
    limitMs = OPERATION_MS,
  ): Promise<Sandbox | undefined> {
    const startedAt = performance.now();
    for (;;) {
      const sandbox = await this.look(api, name);
      if (done(sandbox)) return sandbox;
      if (this.late(startedAt, limitMs))
        throw new Error(`${name} did not become ${wanted}: it is ${describe(sandbox)}`);
      await sleep(POLL_MS);
    }
  }

  gatewayPid(): number | undefined {
    try {
      const record = JSON.parse(readFileSync(join(this.runtime, "gateway.json"), "utf8")) as { pid: number };
      return record.pid;
    } catch {
      return undefined;
    }
  }

  hostPids(): readonly number[] {
    return this.user.processes().filter((pid) => arguments_(pid).some((part) => part.endsWith("/host.mjs")));
  }

  /** Processes of a sandbox: its init, init's helpers, and what the agent is. */
  processesOf(name: string): SandboxProcesses | undefined {
    const launched = this.#launched(name);
    if (launched === undefined) return undefined;
    const table = readdirSync("/proc").flatMap((pid) => (/^\d+$/.test(pid) ? [parentOf(Number(pid))] : []));
    const children = table.flatMap((entry) => (entry?.parent === launched.pid ? [entry.pid] : []));
    if (arguments_(launched.pid)[0] !== launched.title) return undefined;
    const agent = children.find((pid) => arguments_(pid).join(" ").startsWith("sleep 86400"));
    // Init's own two come first. A later one is a command between fork and exec: killing that is the command's end.
    const named = children.filter((pid) => arguments_(pid)[0] === launched.title).toSorted((a, b) => a - b);
    const helpers = agent === undefined ? [] : named.slice(0, 2);
    return { init: launched.pid, helpers, agent };
  }

  #launched(name: string): { readonly pid: number; readonly title: string } | undefined {
    const folder = join(this.state, "sandboxes");
    try {
      for (const id of readdirSync(folder)) {
        const launch = JSON.parse(readFileSync(join(folder, id, "launch.json"), "utf8")) as Record<string, string>;
        if (launch["name"] !== name) continue;
        const started = JSON.parse(readFileSync(join(folder, id, "started.json"), "utf8")) as {
          record: { pid: number };
        };
        return { pid: started.record.pid, title: launch["title"]! };
      }
    } catch {
      // Being made or removed.
    }
    return undefined;
  }

  /** What the logs of gateway and hosts warn of, the newest last. */
  lastWords(): readonly string[] {
    const folder = join(this.state, "logs");
    const found: { readonly time: string; readonly text: string }[] = [];
    for (const name of list(folder)) {
      for (const line of readFileSync(join(folder, name), "utf8").split("\n")) {
        const { level, time, msg, err, ...fields } = parse(line);
        if (!WARNINGS.has(level)) continue;
        const error = typeof err === "string" ? err : ((err as { stack?: string } | undefined)?.stack ?? "");
        const rest = JSON.stringify({ sandbox: fields["sandbox_id"], code: fields["code"] });
        found.push({ time: String(time), text: `${time} ${name}: ${msg} ${rest} ${error}` });
      }
      if (name.endsWith("stderr")) found.push({ time: "", text: readFileSync(join(folder, name), "utf8") });
    }
    return found
      .sort((a, b) => (a.time < b.time ? -1 : 1))
      .slice(-SHOWN_WORDS)
      .map(({ text }) => text);
  }

  /** Unmounts and removes everything; the gateway must have stopped. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const transport of this.#transports) await transport[Symbol.asyncDispose]();
    let problem: Error | undefined;
    if (this.user.processes().length > 0) {
      const args = ["gateway", "stop", "--sandboxes", "stop"];
      const { exitCode, stderr } = await this.user.run(args, { timeoutMs: 45_000, env: this.#variables() });
      if (exitCode !== 0) problem = new Error(`openshell ${args.join(" ")}: exit ${exitCode}\n${stderr}`);
      const left = this.user.processes();
      if (left.length > 0) {
        const names = left.map((pid) => `${pid} ${arguments_(pid).join(" ")}`);
        problem ??= new Error(`still running after the stop:\n  ${names.join("\n  ")}`);
        for (const pid of left) kill(pid);
        await sleep(50);
      }
    }
    if (this.#mounted) {
      const gone = spawnSync("umount", [this.user.home.state]);
      if (gone.status !== 0) {
        problem ??= new Error(`umount: ${gone.stderr}`);
        spawnSync("umount", ["--lazy", this.user.home.state]);
      }
    }
    await this.user[Symbol.asyncDispose]();
    if (problem !== undefined) throw problem;
  }
}

export interface SandboxProcesses {
  readonly init: number;
  readonly helpers: readonly number[];
  readonly agent: number | undefined;
}

/** The environment variable that a provider's credential is. */
export const keyOf = (provider: string): string =>
  provider === SHARED_PROVIDER ? "SHARED_KEY" : provider === EXTRA_PROVIDER ? EXTRA_KEY : "OWN_KEY";
export const EXTRA_KEY = "EXTRA_KEY";

/** YAML of a client's policy: one host of its own, which the variant chooses, and one that all may use. */
export function policyOf(client: number, variant: number): string {
  const endpoint = (host: string, provider: string) => `
  ${provider}:
    endpoints:
      - host: ${host}
        port: 443
        protocol: rest
        enforcement: enforce
        access: read-only
        credential_binding: { provider: ${provider} }
    binaries: [{ path: "/**" }]`;
  const own = endpoint(hostOfVariant(variant), ownProvider(client));
  return `version: 1\nnetwork_policies:${own}${endpoint(HOST_OF_SHARED, SHARED_PROVIDER)}\n`;
}

export function reasonOf(error: ConnectError): string {
  return readErrorDetails(error).reason ?? "";
}

export function describe(sandbox: Sandbox | undefined): string {
  if (sandbox === undefined) return "gone";
  const { phase, conditions, exitCode } = sandbox.status!;
  const ready = conditions.find(({ type }) => type === "Ready");
  return `${SandboxPhase[phase]} ${ready?.reason ?? ""} (${ready?.message ?? ""})${exitCode === undefined ? "" : ` exit ${exitCode}`}`;
}

export function kill(pid: number, signal: NodeJS.Signals = "SIGKILL"): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/** argv of a process; empty when it is gone. */
export function arguments_(pid: number): readonly string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

export function list(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function parse(line: string): Readonly<Record<string, unknown>> {
  try {
    return JSON.parse(line) as Record<string, unknown>;
  } catch {
    return {};
  }
}

function parentOf(pid: number): { readonly pid: number; readonly parent: number } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const [, parent] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return { pid, parent: Number(parent) };
  } catch {
    return undefined;
  }
}

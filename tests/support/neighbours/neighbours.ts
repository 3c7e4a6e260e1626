import { type ChildProcess, execFile } from "node:child_process";
import { once } from "node:events";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";
import type { TestGateway, TestSandbox } from "../api.ts";
import type { TestInternet } from "../internet/index.ts";
import type { QuietReport } from "./client.ts";
import type { CommandsData, CommandsReport } from "./commands.ts";
import { type Compared, compare, type Measure, type Phase } from "./compare.ts";

/**
 * A hostile sandbox beside a quiet one in the same host. Quiet phases and attacks take turns, so that a slow moment of
 * the machine falls on both; what the neighbour's operations took in the one is compared with the other.
 */

/** What the hostile sandbox can do (attacks.py). */
export const ATTACKS = {
  connections: "10,000 connections",
  dns: "flood of DNS questions",
  dnsstream: "flood of DNS questions over TCP",
  events: "flood of refused requests, each an event",
  forks: "fork bomb",
  memory: "memory hog",
  heads: "giant heads and bodies in pieces",
  loris: "slow loris, a byte at a time",
} as const;
export type Attack = keyof typeof ATTACKS;
/** What the machine itself does to a neighbour, without any work of ours: no attack can do less. */
export const CONTROLS = {
  busy: "one busy process outside any sandbox",
  packets: "one process outside any sandbox that sends bytes to itself",
  spin: "four busy processes in a sandbox",
} as const;

const OUTSIDE: ReadonlySet<string> = new Set(["busy", "packets"]);

const HOST = "quiet.example-allowed.com";
/** Of the hostile sandbox: what it sends upstream is not in the way of the neighbour's origin. */
const UPLOAD_HOST = "upload.example-allowed.com";
const PYTHON = "/usr/bin/python3";
const INSIDE = { node: "/opt/neighbour-node", programs: "/opt/neighbour" };
const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - {host: ${HOST}, ports: [443], protocol: rest, enforcement: enforce, access: full}
      - {host: ${UPLOAD_HOST}, ports: [80], protocol: rest, enforcement: enforce, access: full}
    binaries: [{path: "/**"}]
`;
/** The attack is under way when the neighbour is looked at. */
const LEAD_MS = 250;
/** What an attack left behind (connections in the kernel's queue, dying processes) is gone before the next phase. */
const SETTLE_MS = 150;
/** Starting the neighbour's client; on a busy machine the end of its phase is quiet then. */
const START_MS = 500;

export class Neighbours implements AsyncDisposable {
  readonly #quiet: TestSandbox;
  readonly #hostile: TestSandbox;
  readonly #commands: Worker;
  readonly #origins: readonly ChildProcess[];

  private constructor(quiet: TestSandbox, hostile: TestSandbox, commands: Worker, origins: readonly ChildProcess[]) {
    this.#quiet = quiet;
    this.#hostile = hostile;
    this.#commands = commands;
    this.#origins = origins;
  }

  /** Both sandboxes are of one workspace, hence in one host. `node`: the program. */
  static async start(net: TestInternet, gateway: TestGateway, node: string): Promise<Neighbours> {
    const origins = [await serve(net, HOST), await serve(net, UPLOAD_HOST)];
    const volumes = [`${resolve(node, "../..")}:${INSIDE.node}:ro`, `${import.meta.dirname}:${INSIDE.programs}:ro`];
    const options = { policy: POLICY, volumes };
    const quiet = await gateway.create({ ...options, name: "quiet" });
    const hostile = await gateway.create({ ...options, name: "hostile", memory: "192Mi" });
    const data: CommandsData = { socket: gateway.folders.userSocket, sandbox: quiet.name };
    const commands = new Worker(new URL("commands.ts", import.meta.url), { workerData: data });
    await once(commands, "online");
    return new Neighbours(quiet, hostile, commands, origins);
  }

  /** `rounds` times each attack, with a quiet phase of `seconds` before each, and one after the last. */
  async measure(attacks: readonly string[], rounds: number, seconds: number): Promise<readonly Compared[]> {
    await this.#phase(undefined, seconds);
    const phases = await this.phases(attacks, rounds, seconds);
    return attacks.map((attack) => compare(attack, phases));
  }

  async phases(attacks: readonly string[], rounds: number, seconds: number): Promise<readonly Phase[]> {
    const phases: Phase[] = [await this.#phase(undefined, seconds)];
    for (let round = 0; round < rounds; round += 1) {
      for (const attack of attacks) {
        phases.push(await this.#phase(attack, seconds), await this.#phase(undefined, seconds));
      }
    }
    return phases;
  }

  async #phase(attack: string | undefined, seconds: number): Promise<Phase> {
    const attacking = attack === undefined ? undefined : this.#attack(attack, seconds);
    if (attacking !== undefined) await sleep(LEAD_MS);
    this.#commands.postMessage("start");
    const [client, commands] = await Promise.all([this.#client(seconds), this.#stopCommands(seconds)]);
    const times: Record<Measure, readonly number[]> = { ...client, command: commands.times };
    const done = await attacking;
    if (attacking !== undefined) await sleep(SETTLE_MS);
    return { attack, times, failures: [...client.failures, ...commands.failures], done: done ?? 0 };
  }

  async #client(seconds: number): Promise<QuietReport> {
    const argv = [`${INSIDE.node}/bin/node`, `${INSIDE.programs}/client.ts`, HOST, String(seconds)];
    const { exitCode, stdout, stderr } = await this.#quiet.exec(argv);
    if (exitCode !== 0) throw new Error(`the quiet neighbour's client: exit ${exitCode}\n${stderr}`);
    return JSON.parse(stdout) as QuietReport;
  }

  async #stopCommands(seconds: number): Promise<CommandsReport> {
    await sleep(seconds * 1000);
    this.#commands.postMessage("stop");
    const [report] = (await once(this.#commands, "message")) as [CommandsReport];
    return report;
  }

  /** How often the attacker did what it does. */
  async #attack(attack: string, seconds: number): Promise<number> {
    const length = (LEAD_MS + START_MS) / 1000 + seconds;
    const run = (folder: string): string[] => [PYTHON, `${folder}/attacks.py`, attack, String(length), UPLOAD_HOST];
    const { stdout, stderr } = await (OUTSIDE.has(attack)
      ? promisify(execFile)(PYTHON, run(import.meta.dirname).slice(1))
      : this.#hostile.exec(run(INSIDE.programs), { timeoutMs: 60_000 }));
    const done = Number(/^done (\d+)$/m.exec(stdout)?.[1]);
    if (!(done > 0)) throw new Error(`the attack ${attack} did nothing: ${stderr}`);
    return done;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#commands.terminate();
    await this.#hostile.delete();
    await this.#quiet.delete();
    for (const origin of this.#origins) origin.kill("SIGKILL");
  }
}

/** A host whose server is a process of its own. */
async function serve(net: TestInternet, name: string): Promise<ChildProcess> {
  const host = await net.host(name, { services: [] });
  const server = host.commands.spawn([process.execPath, join(import.meta.dirname, "origin.ts")], {
    privileges: "harness",
    stdio: ["pipe", "pipe", "inherit"],
  });
  server.stdin!.end(JSON.stringify(await net.authority.issue([name])));
  const gone = once(server, "exit").then(([code]) => Promise.reject(new Error(`origin ended with status ${code}`)));
  await Promise.race([once(server.stdout!, "data"), gone]);
  gone.catch(() => {});
  return server;
}

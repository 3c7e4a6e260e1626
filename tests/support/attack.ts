import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type SandboxOptions, TestGateway, type TestSandbox } from "./api.ts";
import { spawnCommand } from "./command.ts";
import { type TestHost, TestInternet } from "./internet/index.ts";
import type { PerMode } from "./mode.ts";
import { inMode } from "./modes.ts";
import type { OpenShellOptions } from "./openshell.ts";

/**
 * Attacks: each is run inside a sandbox of a real gateway, and afterwards the world outside is compared with what it
 * was before. A command that fails is not enough: nothing may have happened.
 */

/** What may not change, whatever an attack does. */
interface World {
  readonly mounts: string;
  readonly hostname: string;
  readonly kernel: string;
  readonly canary: string;
  readonly canaryFiles: string;
  readonly links: string;
}

const KERNEL_SETTINGS = ["kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory", "net/ipv4/ip_forward"];

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

/** Things outside that an attacker would like to touch, and the proof that nobody did. */
export class Witness implements Disposable {
  /** A folder of the owner's that no sandbox was given. */
  readonly folder: string;
  /** A file in it with a value that must not be read either. */
  readonly canary: string;
  readonly secret: string;
  /** A process of the owner's. */
  readonly victim: ReturnType<typeof spawnCommand>;
  readonly #watched: { readonly pid: number; readonly name: string }[] = [];
  readonly #traps: TestHost[] = [];
  #world: World;
  #packets: readonly string[] = [];

  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "owner-"));
    this.canary = join(this.folder, "canary");
    this.secret = `canary-${createHash("sha256").update(this.folder).digest("hex")}`;
    writeFileSync(this.canary, `${this.secret}\n`, { mode: 0o600 });
    this.victim = spawnCommand(["sleep", "86400"], { env: { OWNER_SECRET: this.secret }, stdio: ["ignore"] });
    this.watch(this.victim.pid!, "the owner's process");
    this.#world = this.#look();
  }

  /** This process has to survive, and to stay as it is. */
  watch(pid: number, name: string): void {
    this.#watched.push({ pid, name });
  }

  /** It is going to end, and that is part of the attack. */
  forget(pid: number): void {
    const at = this.#watched.findIndex((one) => one.pid === pid);
    if (at >= 0) this.#watched.splice(at, 1);
  }

  /** A host that nobody may reach. */
  trap(host: TestHost): void {
    this.#traps.push(host);
  }

  /** Forgets what the traps counted so far: their own set-up. */
  begin(): void {
    this.#world = this.#look();
    this.#packets = this.#traps.map((host) => JSON.stringify(host.packets()));
    for (const host of this.#traps) host.clearReceived();
  }

  /** Throws when anything outside is not as it was at `begin`. */
  check(): void {
    expect(this.#look(), "the machine").toEqual(this.#world);
    for (const { pid, name } of this.#watched) {
      const state = /^State:\s+(\S)/m.exec(read(`/proc/${pid}/status`))?.[1];
      expect(state, `${name} (${pid}) runs`).toMatch(/^[RSD]$/);
    }
    for (const [index, host] of this.#traps.entries()) {
      const { connections, requests, datagrams } = host.received();
      expect(
        [connections, requests, datagrams].map((list) => list.length),
        `${host.name} received`,
      ).toEqual([0, 0, 0]);
      expect(JSON.stringify(host.packets()), `packets at ${host.name}`).toBe(this.#packets[index]);
    }
  }

  [Symbol.dispose](): void {
    this.victim.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }

  #look(): World {
    return {
      // Mounts of the product itself come and go with its sandboxes; in the test's own namespace there are none of them.
      mounts: read("/proc/self/mountinfo"),
      hostname: read("/proc/sys/kernel/hostname"),
      kernel: KERNEL_SETTINGS.map((name) => read(`/proc/sys/${name}`)).join(),
      canary: read(this.canary),
      canaryFiles: String(spawnSync("ls", ["-lAn", "--time-style=full-iso", this.folder]).stdout),
      links: read("/proc/self/net/dev")
        .split("\n")
        .slice(2)
        .map((line) => line.split(":")[0]!.trim())
        // Links to hosts of the test internet, which a test may add.
        .filter((name) => !/^os(\d+|dns)$/.test(name))
        .join(),
    };
  }
}

/** What a file of attacks works with. */
export interface Lab {
  readonly net: TestInternet;
  readonly gateway: TestGateway;
  /** The hostile sandbox. One for the file: attacks that destroy it make their own. */
  readonly box: TestSandbox;
  readonly witness: Witness;
  /** Folder of the owner's that is mounted read-only at /attack in every sandbox made with `create`. */
  readonly programs: string;
  create(options?: SandboxOptions): Promise<TestSandbox>;
}

export interface LabOptions {
  /** Policy and more of the hostile sandbox, once the internet is there. */
  readonly box?: (net: TestInternet, gateway: TestGateway) => SandboxOptions | Promise<SandboxOptions>;
  /** Hosts and whatever else the file needs, before the gateway starts. */
  readonly prepare?: (net: TestInternet, witness: Witness) => Promise<void>;
  /** Configuration of the gateway. */
  readonly gateway?: OpenShellOptions;
  /** C programs by name: compiled statically and put into /attack. */
  readonly c?: Readonly<Record<string, string>>;
  /** Scripts by file name. */
  readonly scripts?: Readonly<Record<string, string>>;
}

/** The interpreter that attack scripts are written for. */
export const PYTHON = "/usr/bin/python3";

/** Registers the set-up of a file of attacks; the returned object is filled before the first one. */
export function openLab(options: LabOptions = {}): Lab {
  const lab = {} as { -readonly [K in keyof Lab]: Lab[K] };
  const stack = new AsyncDisposableStack();
  beforeAll(async () => {
    lab.witness = stack.use(new Witness());
    lab.programs = mkdtempSync(join(tmpdir(), "attack-"));
    stack.defer(() => rmSync(lab.programs, { recursive: true, force: true }));
    chmodSync(lab.programs, 0o755);
    for (const [name, source] of Object.entries(options.c ?? {})) compile(lab.programs, name, source);
    for (const [name, text] of Object.entries(options.scripts ?? {}))
      writeFileSync(join(lab.programs, name), text, { mode: 0o755 });
    lab.net = stack.use(await TestInternet.start());
    await options.prepare?.(lab.net, lab.witness);
    lab.gateway = stack.use(await TestGateway.start(lab.net, options.gateway));
    lab.create = (extra = {}) =>
      lab.gateway.create({ ...extra, volumes: [`${lab.programs}:/attack:ro`, ...(extra.volumes ?? [])] });
    lab.box = await lab.create(await options.box?.(lab.net, lab.gateway));
    lab.witness.watch(lab.gateway.pid, "the gateway");
    for (const pid of lab.gateway.hosts()) lab.witness.watch(pid, "a supervisor host");
  });
  afterAll(() => stack.disposeAsync());
  attacks.lab = lab;
  return lab;
}

/** The lab of the file that is being read. */
const attacks: { lab: Lab | undefined } = { lab: undefined };

/**
 * One attack. `asserts` says what has to be true of the outside afterwards, `expected` what the attacker sees in each
 * mode; both are what docs/security/attacks.md shows, so they are literals. "as root" for a user: nothing about it depends
 * on the mode, and it runs in root's pass alone. The witness is asked in any case.
 */
export function attack(
  name: string,
  asserts: string,
  expected: PerMode<string>,
  run: (lab: Lab, expected: string) => Promise<void>,
  timeoutMs?: number,
): void {
  register(it, name, asserts, expected, run, timeoutMs);
}

/**
 * An attack that succeeds, because nothing here stops it yet or nothing can (SECURITY.md "Not defended"): the test is the
 * one that should pass, and fails the suite as soon as it does, so that the list stays true.
 */
export function openAttack(...parameters: Parameters<typeof attack>): void {
  register(it.fails, ...parameters);
}

function register(
  test: typeof it | typeof it.fails,
  name: string,
  asserts: string,
  expected: PerMode<string>,
  run: (lab: Lab, expected: string) => Promise<void>,
  timeoutMs?: number,
): void {
  const lab = attacks.lab!;
  (inMode(expected) === "as root" ? it.skip : test)(
    name,
    async () => {
      expect(asserts).not.toBe("");
      lab.witness.begin();
      await run(lab, inMode(expected));
      lab.witness.check();
    },
    timeoutMs,
  );
}

/** Compiles one C program into `folder`. */
export function compile(folder: string, name: string, source: string): void {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${name}.c`);
  writeFileSync(path, source, { mode: 0o644 });
  const built = spawnSync("cc", ["-static", "-O1", "-w", "-pthread", "-o", join(folder, name), path], {
    encoding: "utf8",
  });
  if (built.status !== 0) throw new Error(`${name}.c: ${built.stderr || built.error?.message}`);
  chmodSync(join(folder, name), 0o755);
}

/**
 * Every attempt of a program that prints "name OUTCOME" lines ended as expected: `expected` is one outcome, or several
 * with " or " between them. `count` lines have to be there, so that a program that died early does not pass.
 */
export function expectOutcomes(
  result: { readonly stdout: string; readonly stderr: string },
  expected: string,
  count: number,
): void {
  const lines = result.stdout.trim().split("\n").filter(Boolean);
  const allowed = expected.split(" or ");
  const others = lines.filter((line) => !allowed.includes(line.slice(line.lastIndexOf(" ") + 1)));
  expect({ others, count: lines.length, stderr: result.stderr }).toEqual({ others: [], count, stderr: "" });
}

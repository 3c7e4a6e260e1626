import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";
import type { CaptureMode, ExitStatus, Restrictions, SandboxProcess, SpawnSpec } from "@openshell/boundary";
import { type AttachOptions, attachLocalBoundary } from "@openshell/boundary/local/attach.ts";
import { compileLandlock } from "@openshell/boundary/local/compile/landlock.ts";
import { captureNftBatch } from "@openshell/boundary/local/compile/nft.ts";
import { agentRlimits } from "@openshell/boundary/local/compile/rlimits.ts";
import { captureRoutes } from "@openshell/boundary/local/compile/route.ts";
import { compileSeccomp, filterArchitecture } from "@openshell/boundary/local/compile/seccomp.ts";
import { compileSkLookup } from "@openshell/boundary/local/compile/sk-lookup.ts";
import { type LaunchedSandbox, launchSandbox } from "@openshell/boundary/local/launch.ts";
import type { LocalBoundary } from "@openshell/boundary/local/local-boundary.ts";
import type { LaunchPlan, RootStep } from "@openshell/boundary/local/plan.ts";

/** Ids of the agent inside a test sandbox when the tests run as root. */
const ROOT_MODE_UID = 1000;
/** First outside id when the tests run as root; far from any person's. */
const ROOT_MODE_BASE = 2_000_000;

export const runsAsRoot = process.getuid?.() === 0;

export interface TestPlanOptions {
  readonly mode?: CaptureMode;
  readonly orphanLimitMs?: number;
  readonly extraSteps?: readonly RootStep[];
  readonly ports?: readonly number[];
  readonly freezer?: LaunchPlan["freezer"];
  readonly cgroupProcs?: readonly string[];
}

export interface TestPlan extends Disposable {
  readonly plan: LaunchPlan;
  readonly folder: string;
  /** The agent's uid as the host sees it. */
  readonly outsideUid: number;
}

/** A small launch plan written by hand: system folders read-only, /tmp, /proc, /dev. Disposing removes its control folder. */
export function testPlan(options: TestPlanOptions = {}): TestPlan {
  const folder = mkdtempSync(join(tmpdir(), "osb-"));
  const control = join(folder, "c");
  mkdirSync(control, { mode: 0o700 });
  const uid = runsAsRoot ? ROOT_MODE_UID : process.getuid!();
  const gid = runsAsRoot ? ROOT_MODE_UID : process.getgid!();
  const idMap = (id: number) =>
    runsAsRoot ? { inside: 0, outside: ROOT_MODE_BASE, count: 65_536 } : { inside: id, outside: id, count: 1 };
  const mode = options.mode ?? (runsAsRoot ? "sk_lookup" : "nft");
  const ports = mode === "listener_per_port" ? (options.ports ?? [80, 443, 3128]) : [];
  return {
    folder,
    outsideUid: runsAsRoot ? ROOT_MODE_BASE + uid : uid,
    plan: {
      sandboxId: "test-sandbox",
      generation: 1n,
      nonce: randomBytes(32),
      controlFolder: control,
      controlSocket: join(control, "control.sock"),
      identity: {
        uid,
        gid,
        uidMap: [idMap(uid)],
        gidMap: [idMap(gid)],
        denySetgroups: !runsAsRoot,
      },
      hostname: "sandbox",
      cgroupProcs: options.cgroupProcs ?? [],
      freezer: options.freezer ?? { kind: "signals", folder: "" },
      root: [...baseSteps(uid, gid), ...(options.extraSteps ?? []), { kind: "seal", target: "/" }],
      network: {
        mode,
        routes: captureRoutes(ports),
        skLookup: mode === "sk_lookup" ? compileSkLookup() : undefined,
        nft: mode === "nft" ? captureNftBatch(3128) : undefined,
        ports,
      },
      orphanLimitMs: options.orphanLimitMs ?? 30_000,
    },
    [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }),
  };
}

function baseSteps(uid: number, gid: number): RootStep[] {
  const steps: RootStep[] = [
    { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: 16n << 20n, noexec: false, owner: "root" },
  ];
  for (const path of ["/usr", "/bin", "/sbin", "/lib", "/lib64"]) {
    if (!existsSync(path)) continue;
    if (lstatSync(path).isSymbolicLink()) steps.push({ kind: "symlink", target: path, to: readlinkSync(path) });
    else {
      const bind = { readOnly: true, recursive: true, optional: false, noexec: false };
      steps.push({ kind: "bind", source: path, target: path, ...bind });
    }
  }
  const text = (target: string, content: string): RootStep => ({
    kind: "file",
    target,
    mode: 0o644,
    content: Buffer.from(content),
  });
  steps.push(
    text("/etc/passwd", `root:x:0:0::/root:/bin/sh\nagent:x:${uid}:${gid}::/home/agent:/bin/sh\n`),
    text("/etc/group", `root:x:0:\nagent:x:${gid}:\n`),
    text("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
    text("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    { kind: "tmpfs", target: "/home/agent", mode: 0o700, sizeBytes: 64n << 20n, noexec: false, owner: "agent" },
    { kind: "tmpfs", target: "/tmp", mode: 0o1777, sizeBytes: 64n << 20n, noexec: false, owner: "root" },
    { kind: "proc", target: "/proc" },
    { kind: "dev", target: "/dev" },
  );
  return steps;
}

let built: string | undefined;

/** What tests/run.ts prepared. */
function lastBuild(): string | undefined {
  const folder = join(import.meta.dirname, "../../dist");
  const stamp = join(folder, "stamp");
  if (!existsSync(stamp)) return undefined;
  const build = join(folder, readFileSync(stamp, "utf8").split(" ")[0]!);
  return existsSync(join(build, "native", "openshell.node")) ? build : undefined;
}

/** Folder of `openshell-init` and the addon: `OPENSHELL_DIST/native`, else the build of this run, else built once for this test file. */
export function nativeParts(): string {
  const dist = process.env["OPENSHELL_DIST"] ?? lastBuild();
  if (dist !== undefined) {
    process.env["OPENSHELL_DIST"] = dist;
    return join(dist, "native");
  }
  if (built === undefined) {
    const folder = mkdtempSync(join(tmpdir(), "osb-dist-"));
    execFileSync(join(import.meta.dirname, "../../native/build.sh"), [join(folder, "native")]);
    process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
    process.env["OPENSHELL_DIST"] = folder;
    built = join(folder, "native");
  }
  return built;
}

/** What binds the agent in these tests: the real filter and ruleset, home writable. */
export function testRestrictions(): Restrictions {
  return {
    landlock: compileLandlock(
      {
        readOnly: [],
        readWrite: ["/home/agent"],
        includeWorkdir: false,
        workingDirectory: "/home/agent",
        layoutReadOnly: [],
        layoutReadWrite: [],
        compatibility: "best_effort",
      },
      7,
    ),
    seccomp: compileSeccomp(filterArchitecture(process.arch) ?? "x64"),
    rlimits: agentRlimits(),
    umask: 0o022,
  };
}

export interface Outcome {
  readonly status: ExitStatus;
  readonly stdout: string;
  readonly stderr: string;
}

/** Everything a stream gives until its end. Call it at once: output is not kept for later. */
export async function collect(stream: Readable | NodeJS.ReadableStream | undefined): Promise<Buffer> {
  const parts: Buffer[] = [];
  if (stream === undefined) return Buffer.alloc(0);
  for await (const part of stream as AsyncIterable<Buffer>) parts.push(part);
  return Buffer.concat(parts);
}

export async function outcome(process: SandboxProcess): Promise<Outcome> {
  const [status, stdout, stderr] = await Promise.all([process.exit, collect(process.stdout), collect(process.stderr)]);
  return { status, stdout: stdout.toString(), stderr: stderr.toString() };
}

export const testEnv = { PATH: "/usr/bin:/bin", HOME: "/home/agent", LANG: "C.UTF-8" } as const;

export function command(argv: readonly string[], cwd = "/home/agent"): SpawnSpec {
  return { argv, env: testEnv, cwd, stdio: { kind: "pipes" } };
}

/** A launched sandbox with one attached host. */
export interface TestSandbox extends AsyncDisposable {
  readonly plan: LaunchPlan;
  readonly launched: LaunchedSandbox;
  readonly boundary: LocalBoundary;
  readonly outsideUid: number;
  attachOptions(): AttachOptions;
  /** Runs to the end, stdin closed at once. */
  run(argv: readonly string[]): Promise<Outcome>;
}

export interface TestSandboxOptions extends TestPlanOptions {
  /** Default true: restrictions are applied, so that processes can be spawned. */
  readonly confirm?: boolean;
}

/** Launches, attaches and confirms. Disposing ends init whatever state it is in. */
export async function openSandbox(options: TestSandboxOptions = {}): Promise<TestSandbox> {
  const test = testPlan(options);
  const native = nativeParts();
  const { plan, outsideUid } = test;
  const launched = await launchSandbox(plan, { initPath: join(native, "openshell-init") });
  const attachOptions = (): AttachOptions => ({
    socketPath: plan.controlSocket,
    nonce: plan.nonce,
    instanceId: "test-host",
    expected: { ...plan, netnsCookie: launched.netnsCookie, pid: launched.pid },
  });
  const end = (): void => {
    endInit(launched.pid);
    test[Symbol.dispose]();
  };
  try {
    const boundary = await attachLocalBoundary(attachOptions());
    if (options.confirm !== false) await boundary.confirm(testRestrictions());
    return {
      plan,
      launched,
      boundary,
      outsideUid,
      attachOptions,
      async run(argv) {
        const process = await boundary.spawn(command(argv));
        void process.closeStdin();
        return outcome(process);
      },
      async [Symbol.asyncDispose]() {
        end();
        await boundary.ended;
        for (const { fd } of boundary.capture.tcp) closeQuietly(fd);
        closeQuietly(boundary.capture.dnsUdp);
        closeQuietly(boundary.capture.dnsTcp);
      },
    };
  } catch (error) {
    end();
    throw error;
  }
}

/** SIGKILL to the init of a test sandbox (the kernel ends everything inside with it) or to a process of it, gone or not. */
export function endInit(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // Gone already.
  }
}

function closeQuietly(fd: number): void {
  try {
    closeSync(fd);
  } catch {
    // A test handed it to a server that has closed it.
  }
}

import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { gatewayPaths } from "@openshell/base";
import type { Boundary, ExitStatus } from "@openshell/boundary";
import { attachLocalBoundary } from "@openshell/boundary/local/attach.ts";
import { compileRestrictions } from "@openshell/boundary/local/compile/restrictions.ts";
import type { ComputeDriver, SandboxIntent, StartedSandbox } from "@openshell/drivers/driver.ts";
import { parseLocalDriverConfig } from "@openshell/drivers/local/config.ts";
import { type LocalDriverOptions, openLocalDriver } from "@openshell/drivers/local/driver.ts";
import { shortId } from "@openshell/drivers/local/launch.ts";
import { nativeParts } from "./boundary.ts";
import { type Inventory, leaksSince } from "./leaks.ts";
import { mode } from "./mode.ts";

/** A gateway's folders and its local driver, without a gateway. */
export interface DriverBench extends AsyncDisposable {
  readonly driver: ComputeDriver;
  readonly folder: string;
  readonly options: LocalDriverOptions;
  /** Another driver on the same folders, as a restarted gateway would open it. */
  reopen(changes?: Partial<LocalDriverOptions>): Promise<ComputeDriver>;
  intent(changes?: Partial<SandboxIntent>): SandboxIntent;
}

let nextBlock = 0;
let ca: string | undefined;

/** A self-signed certificate; only its form matters here. */
function inspectionCa(): string {
  if (ca !== undefined) return ca;
  const args = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  ca = execFileSync("openssl", [...args, "-subj", "/CN=OpenShell Sandbox CA", "-keyout", "/dev/null"], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  return ca;
}

/** Opens the driver on fresh folders. Disposing deletes every sandbox that is left, then the folders. */
export async function openBench(env: Readonly<Record<string, string>> = {}): Promise<DriverBench> {
  const folder = mkdtempSync(join(tmpdir(), "drv-"));
  chmodSync(folder, 0o711);
  const paths = gatewayPaths("t", {
    uid: process.getuid!(),
    home: folder,
    env: { XDG_CONFIG_HOME: join(folder, "c"), XDG_STATE_HOME: join(folder, "s"), XDG_RUNTIME_DIR: join(folder, "r") },
  });
  const options: LocalDriverOptions = {
    paths,
    clientConfigRoot: join(folder, "c", "openshell"),
    config: parseLocalDriverConfig({}),
    initPath: join(nativeParts(), "openshell-init"),
    env: { PATH: process.env["PATH"], ...env },
  };
  // As the gateway runs.
  const umask = process.umask(0o077);
  const driver = await openLocalDriver(options);
  return {
    driver,
    folder,
    options,
    reopen: (changes = {}) => openLocalDriver({ ...options, ...changes }),
    intent: (changes = {}) => ({
      sandboxId: `sb-${randomBytes(6).toString("hex")}`,
      name: "probe",
      workspace: "default",
      generation: 1n,
      nonce: randomBytes(32),
      idBlock: mode === "root" ? nextBlock++ : undefined,
      root: { kind: "host" },
      hostname: "probe",
      process: { runAsUser: "", runAsGroup: "" },
      resources: { cpuMillis: undefined, memoryBytes: undefined, pids: undefined },
      volumes: [],
      caller: { uid: process.getuid!(), gid: process.getgid!() },
      inspectionCaPem: inspectionCa(),
      additionalCaPem: "",
      ...changes,
    }),
    async [Symbol.asyncDispose]() {
      for (const { sandboxId } of await driver.list()) await driver.delete(sandboxId);
      await driver[Symbol.asyncDispose]();
      process.umask(umask);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** What the agent's filesystem rules are in these tests: the default policy. */
export const DEFAULT_FILESYSTEM = {
  readOnly: ["/bin", "/usr", "/lib", "/proc", "/dev/urandom", "/etc", "/var/log"],
  readWrite: ["/tmp", "/dev/null"],
  includeWorkdir: true,
  compatibility: "best_effort",
} as const;

/** Attaches to a started sandbox and puts the restrictions in force, as a supervisor does. */
export async function confine(
  started: StartedSandbox,
  intent: SandboxIntent,
  filesystem: Partial<Parameters<typeof compileRestrictions>[0]["filesystem"]> = {},
): Promise<Boundary> {
  const boundary = await attachLocalBoundary({
    socketPath: started.boundary.socketPath,
    nonce: intent.nonce,
    instanceId: "test",
    expected: {
      sandboxId: started.sandboxId,
      generation: started.generation,
      netnsCookie: started.boundary.netnsCookie,
      pid: started.record.pid,
    },
  });
  const { layout } = started;
  await boundary.confirm(
    compileRestrictions({
      arch: process.arch,
      pids: layout.processLimit,
      filesystem: {
        ...DEFAULT_FILESYSTEM,
        workingDirectory: layout.workingDirectory,
        layoutReadOnly: layout.readOnlyPaths,
        layoutReadWrite: layout.readWritePaths,
        ...filesystem,
      },
    }),
  );
  return boundary;
}

export interface Output {
  readonly stdout: string;
  readonly stderr: string;
  readonly exit: ExitStatus;
}

/** Runs one command inside to its end. */
export async function runInside(
  boundary: Boundary,
  started: StartedSandbox,
  argv: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<Output> {
  const process_ = await boundary.spawn({
    argv,
    env: { ...started.layout.environment, ...env },
    cwd: started.layout.workingDirectory,
    stdio: { kind: "pipes" },
  });
  await process_.closeStdin();
  const [stdout, stderr, exit] = await Promise.all([text(process_.stdout), text(process_.stderr!), process_.exit]);
  return { stdout, stderr, exit };
}

/** Runs a shell script inside. */
export function shell(boundary: Boundary, started: StartedSandbox, script: string): Promise<Output> {
  return runInside(boundary, started, ["/bin/sh", "-c", script]);
}

async function text(stream: NodeJS.ReadableStream): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of stream as AsyncIterable<Buffer>) parts.push(part);
  return Buffer.concat(parts).toString();
}

/**
 * `expectNoLeaks` for one driver: control groups of other gateways on the machine come and go meanwhile, so only those
 * that carry this gateway's mark count.
 */
export async function expectNoDriverLeaks(bench: DriverBench, before: Inventory): Promise<void> {
  const mark = `openshell-${shortId(bench.options.paths.state)}-`;
  const end = performance.now() + 5_000;
  for (;;) {
    const leaks = leaksSince(before).filter((leak) => !leak.startsWith("cgroups: ") || leak.includes(mark));
    if (leaks.length === 0) return;
    if (performance.now() > end) throw new Error(`left behind:\n  ${leaks.join("\n  ")}`);
    await sleep(25);
  }
}

/** A folder of the caller's for volumes, removed by the caller. */
export function callerFolder(bench: DriverBench, name: string): string {
  const folder = join(bench.folder, name);
  mkdirSync(folder);
  chmodSync(folder, 0o755);
  return folder;
}

import { randomBytes } from "node:crypto";
import { existsSync, lstatSync, mkdirSync, mkdtempSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CaptureMode } from "@openshell/boundary";
import { captureNftBatch } from "@openshell/boundary/local/compile/nft.ts";
import { captureRoutes } from "@openshell/boundary/local/compile/route.ts";
import { compileSkLookup } from "@openshell/boundary/local/compile/sk-lookup.ts";
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
        routes: captureRoutes(),
        skLookup: mode === "sk_lookup" ? compileSkLookup() : undefined,
        nft: mode === "nft" ? captureNftBatch(3128) : undefined,
        ports: mode === "listener_per_port" ? (options.ports ?? [80, 443, 3128]) : [],
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
    { kind: "directory", target: "/home/agent", mode: 0o700, owner: "agent" },
    { kind: "tmpfs", target: "/tmp", mode: 0o1777, sizeBytes: 64n << 20n, noexec: false, owner: "root" },
    { kind: "proc", target: "/proc" },
    { kind: "dev", target: "/dev" },
  );
  return steps;
}

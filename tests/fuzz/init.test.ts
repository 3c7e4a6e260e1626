import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { encodeMessage } from "@openshell/boundary/local/frames.ts";
import type { LaunchPlan, PlanNetwork } from "@openshell/boundary/local/plan.ts";
import { encodePlan } from "@openshell/boundary/local/plan-encode.ts";
import { afterAll, beforeAll, expect, it } from "vitest";

const ROUNDS = 5_000;

function plan(network: Partial<PlanNetwork>): LaunchPlan {
  return {
    sandboxId: "sandbox",
    generation: 1n,
    nonce: new Uint8Array(32).fill(7),
    controlFolder: "/run/c",
    controlSocket: "/run/c/s",
    identity: {
      uid: 1000,
      gid: 1000,
      uidMap: [{ inside: 0, outside: 100_000, count: 65_536 }],
      gidMap: [{ inside: 0, outside: 100_000, count: 65_536 }],
      denySetgroups: false,
    },
    hostname: "h",
    cgroupProcs: ["/c/cgroup.procs"],
    freezer: { kind: "v2", folder: "/c" },
    root: [
      { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: 4096n, noexec: true, owner: "root" },
      { kind: "directory", target: "/d", mode: 0o700, owner: "agent" },
      { kind: "file", target: "/f", mode: 0o644, content: Buffer.from("content") },
      { kind: "symlink", target: "/l", to: "t" },
      { kind: "bind", source: "/usr", target: "/usr", readOnly: true, recursive: true, optional: false, noexec: false },
      { kind: "volume", source: "/v", target: "/w", readOnly: false, idmap: { hostUid: 7, hostGid: 8 } },
      { kind: "volume", source: "/i", target: "/i", readOnly: true, idmap: "sandbox" },
      { kind: "overlay", target: "/r", lower: ["/i"], upper: "/u", work: "/w" },
      { kind: "proc", target: "/proc" },
      { kind: "dev", target: "/dev" },
      { kind: "seal", target: "/" },
    ],
    network: {
      mode: "sk_lookup",
      routes: [{ message: Uint8Array.of(1, 2, 3, 4), optional: true }],
      skLookup: { program: new Uint8Array(24), mapFixups: [0, 2] },
      nft: undefined,
      ports: [],
      ...network,
    },
    orphanLimitMs: 30_000,
  };
}

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-fuzz-"));
  const native = join(import.meta.dirname, "../../native/init");
  const sources = ["plan.c", "bytes.c", "frames.c", "sync.c"].map((name) => join(native, name));
  const flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"];
  execFileSync("cc", [...flags, "-o", join(folder, "init"), join(import.meta.dirname, "init.c"), ...sources]);
}, 60_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

it("init's decoders stay within bounds for mutations of plans and frames", { timeout: 60_000 }, () => {
  const frame = (type: number, size: number): Buffer => encodeMessage(type, 3, Buffer.alloc(size, type));
  // The first byte of frames is also the size of the pieces they come in.
  const seeds = [
    [0, encodePlan(plan({}))],
    [0, encodePlan(plan({ mode: "listener_per_port", ports: [80, 443], skLookup: undefined }))],
    [0, encodePlan(plan({ mode: "nft", nft: new Uint8Array(40), skLookup: undefined }))],
    [1, frame(1, 60), frame(5, 0), frame(11, 300)],
    [1, Buffer.alloc(1), frame(1, 60), frame(5, 0)],
    [1, Buffer.alloc(16, 15), frame(4, 30_000), frame(5, 0)],
  ].map(([kind, ...parts], index) => {
    const path = join(folder, `seed-${index}`);
    writeFileSync(path, Buffer.concat([Buffer.of(kind as number), ...(parts as Buffer[])]));
    return path;
  });
  const result = spawnSync(join(folder, "init"), [String(ROUNDS), ...seeds], { encoding: "utf8" });
  expect(result.stderr).toBe("");
  expect(result.stdout).toBe("decoded\n");
});

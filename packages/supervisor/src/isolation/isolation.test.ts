import type { IsolationLayer } from "@openshell/boundary";
import { compileRestrictions } from "@openshell/boundary/local/compile/restrictions.ts";
import { describe, expect, it } from "vitest";
import { type CanaryFacts, canaries } from "./canaries.ts";
import { belowMinimum, missingLayers, withUsableLandlock } from "./minimum.ts";
import { selfTest } from "./self-test.ts";
import type { Witness } from "./witness.ts";

const filesystem = {
  readOnly: [] as readonly string[],
  readWrite: ["/work"],
  includeWorkdir: false,
  workingDirectory: "/sandbox",
  layoutReadOnly: [],
  layoutReadWrite: ["/sandbox"],
  compatibility: "best_effort",
} as const;
const layer = (name: string, enforced = true, detail = ""): IsolationLayer => ({ name, enforced, detail });
const CONFINED = ["namespaces", "root_view", "network_capture", "landlock", "no_new_privs", "capabilities", "seccomp"];

const facts: CanaryFacts = {
  layers: CONFINED.map((name) => layer(name, true, name === "root_view" ? "read-only system folders" : "")),
  restrictions: compileRestrictions({ filesystem, arch: "x64", pids: 64 }),
  uid: 1000,
  gid: 1000,
  netnsCookie: 7n,
  hostPaths: ["/var/lib/gateway logs"],
  hostSocket: "/run/openshell/s/control.sock",
  witness: { port: 40_000, abstractName: "w" },
  gatewayAddresses: ["127.0.0.1:17670", "[::1]:17670", "192.168.1.2:17670", "127.0.0.1:3128", "not an address"],
  capturePorts: [3128],
};

/** What a sandbox answers in which every layer holds. */
function sound(attempt: string): bigint {
  if (attempt.startsWith("node") || attempt.startsWith("device") || attempt === "list /") return -13n;
  if (attempt.startsWith("socket 17")) return -97n;
  if (attempt === "network") return 7n;
  if (attempt === "no-new-privileges") return 1n;
  if (attempt === "filter") return 2n;
  if (attempt === "limit 6") return 64n;
  const zero = ["interfaces", "set-id", "capabilities", "ids"];
  return zero.some((word) => attempt.startsWith(word)) ? 0n : -1n;
}

function witness(seen: boolean): () => Promise<Witness> {
  return async () => ({
    port: 40_000,
    abstractName: "w",
    reached: async () => seen,
    async [Symbol.asyncDispose]() {},
  });
}

function test(answer: (attempt: string) => bigint, changes: Partial<CanaryFacts> = {}, seen = false) {
  return selfTest({
    boundary: { probe: async (list) => list.map(answer) },
    facts: { ...facts, ...changes },
    openWitness: witness(seen),
  });
}

describe("canaries", () => {
  it("are tried against layers that claim to be in force, and no others", () => {
    const names = new Set(canaries(facts).map(({ layer: name }) => name));
    expect([...names].toSorted()).toEqual([...CONFINED].toSorted());
    expect(canaries({ ...facts, layers: [layer("seccomp", false)] })).toEqual([]);
  });
  it("fit one probe, whatever the gateway listens on", () => {
    const gatewayAddresses = Array.from({ length: 40 }, (_, n) => `127.0.0.1:${20_000 + n}`);
    expect(canaries({ ...facts, gatewayAddresses }).length).toBeLessThanOrEqual(64);
  });
  it("go to the gateway by TCP where only loopback leads there, else around the capture", () => {
    const attempts = canaries(facts).map(({ attempt }) => attempt);
    expect(attempts).toEqual(expect.arrayContaining(["tcp 127.0.0.1 17670", "tcp ::1 17670", "udp 192.168.1.2 17670"]));
    expect(attempts).not.toContain("tcp 127.0.0.1 3128");
  });
  it("ask for nothing that a rule of the policy grants", () => {
    const restrictions = compileRestrictions({ filesystem: { ...filesystem, readOnly: ["/"] }, arch: "x64" });
    expect(canaries({ ...facts, restrictions }).map(({ attempt }) => attempt)).not.toContain("list /");
    const own = compileRestrictions({
      filesystem: { ...filesystem, readWrite: ["/sys/kernel/x", "/usr"] },
      arch: "x64",
    });
    const attempts = canaries({ ...facts, restrictions: own }).map(({ attempt }) => attempt);
    expect(attempts.filter((attempt) => /^see \/sys|^create/.test(attempt))).toEqual([]);
  });
});

describe("the self-test", () => {
  it("passes where all is refused, and says of each layer that it was tried", async () => {
    const { layers, breaches } = await test(sound);
    expect(breaches).toEqual([]);
    expect(layers.every(({ enforced, tested }) => enforced && tested)).toBe(true);
  });
  it.each(canaries(facts).map(({ attempt, layer: name }) => [attempt, name]))(
    "finds that `%s` got through %s",
    async (attempt, name) => {
      if (attempt === "tcp 127.0.0.1 40000") return;
      const through = attempt === "no-new-privileges" || attempt === "filter" ? 0n : sound(attempt) === 0n ? 1n : 0n;
      const answer = attempt.startsWith("device") ? -13n : through;
      const { layers, breaches } = await test((other) => (other === attempt ? answer : sound(other)));
      if (attempt.startsWith("device")) return expect(breaches).toEqual([]);
      expect(breaches).toMatchObject([{ layer: name }]);
      expect(layers.find((candidate) => candidate.name === name)).toMatchObject({ enforced: false, tested: false });
    },
  );
  it("takes what could not be tried for neither held nor broken", async () => {
    const { layers, breaches } = await test((attempt) =>
      attempt.startsWith("node") || attempt.startsWith("device") || attempt === "list /" ? -2n : sound(attempt),
    );
    expect(breaches).toEqual([]);
    expect(layers.find(({ name }) => name === "landlock")).toMatchObject({ enforced: true, tested: false });
  });
  it("believes the host's listener about a connection; one that somebody inside took is none", async () => {
    const connected = (attempt: string): bigint => (attempt === "tcp 127.0.0.1 40000" ? 0n : sound(attempt));
    expect((await test(connected, {}, false)).breaches).toEqual([]);
    expect((await test(connected, {}, true)).breaches).toMatchObject([{ layer: "network_capture" }]);
    // A stranger of this machine who happens to connect stops no start.
    expect((await test(sound, {}, true)).breaches).toEqual([]);
  });
  it("fails when the canaries cannot be tried", async () => {
    const probe = async () => Promise.reject(new Error("gone"));
    await expect(selfTest({ boundary: { probe }, facts, openWitness: witness(false) })).rejects.toThrow("gone");
  });
});

describe("a minimum", () => {
  const layers = [layer("landlock", true, "abi=7"), layer("seccomp"), layer("separate_ids", false, "1 ids")];
  it("is held against layers by name, by level, and against all there are", () => {
    expect(missingLayers(["landlock", "seccomp"], layers)).toEqual([]);
    expect(missingLayers(["complete"], layers)).toEqual([{ name: "separate_ids", why: "1 ids" }]);
    expect(missingLayers(["confined"], layers).map(({ name }) => name)).toEqual([
      ...["namespaces", "root_view", "network_capture", "no_new_privs", "capabilities"],
    ]);
    expect(missingLayers(["limit_memory"], layers)).toEqual([
      { name: "limit_memory", why: "this sandbox has no such layer" },
    ]);
  });
  it("is refused with each missing layer, why it is missing, and what to do", () => {
    const error = belowMinimum(missingLayers(["separate_ids", "limit_memory"], layers));
    expect(error).toMatchObject({ code: "isolation_below_minimum" });
    expect(error.message).toContain("separate_ids (1 ids), limit_memory (this sandbox has no such layer)");
    expect(error.next).toMatch(/Run the gateway as root.*--memory.*or demand less/);
  });
  it("takes a Landlock that lets files be emptied for none, and asks the system call's answer, not a list of modules", () => {
    const abi = (version: number) => withUsableLandlock([layer("landlock", true, `abi=${version} fs=0x1fff`)])[0]!;
    expect([1, 2].map((version) => abi(version).enforced)).toEqual([false, false]);
    expect([3, 7].map((version) => abi(version).enforced)).toEqual([true, true]);
    expect(abi(2).detail).toContain("ABI 3");
  });
});

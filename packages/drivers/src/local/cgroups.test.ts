import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type CgroupPlaces,
  existingCgroups,
  findCgroups,
  makeCgroups,
  removeCgroups,
  usableCgroups,
} from "./cgroups.ts";

const HYBRID_MOUNTS = `33 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`;

describe("findCgroups", () => {
  it("takes this process's folder of each controller on a hybrid machine", () => {
    const places = findCgroups(HYBRID_MOUNTS, "4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/user\n", () => "hugetlb\n");
    expect(places.unified).toBe("/sys/fs/cgroup/unified/user");
    expect(places.unifiedControllers).toEqual(["hugetlb"]);
    expect([...places.v1]).toEqual([
      ["cpu", "/sys/fs/cgroup/cpu"],
      ["memory", "/sys/fs/cgroup/memory/jobs/7"],
    ]);
  });
  it("stays within what a container's mount shows", () => {
    const mounts = "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    expect(findCgroups(mounts, "0::/docker/abc/x\n", () => "cpu memory pids\n").unified).toBe("/sys/fs/cgroup/x");
    expect(findCgroups(mounts, "0::/other\n", () => undefined).unified).toBe("/sys/fs/cgroup");
  });
  it("finds nothing where cgroups are not mounted", () => {
    expect(findCgroups("", "0::/\n", () => undefined)).toEqual({
      unifiedMount: undefined,
      unified: undefined,
      unifiedControllers: [],
      v1: new Map(),
    });
  });
});

/** An ordinary folder stands in for a cgroup file system: files appear when written. */
describe("makeCgroups", () => {
  let base: string;
  beforeEach(() => {
    base = mkdtempSync(join(tmpdir(), "cgroups-"));
    for (const name of ["unified", "memory", "pids", "cpu", "freezer"]) mkdirSync(join(base, name));
  });
  afterEach(() => rmSync(base, { recursive: true }));
  const limits = { memoryBytes: 64n << 20n, cpuMillis: 1500, pids: 100 };
  const v1 = (...names: string[]): CgroupPlaces["v1"] => new Map(names.map((name) => [name, join(base, name)]));
  const read = (...path: string[]): string => readFileSync(join(base, ...path), "utf8");

  it("sets version 1 limits where version 2 has no controllers, and freezes with version 1", () => {
    const made = makeCgroups("s", limits, {
      unified: join(base, "unified"),
      unifiedControllers: [],
      v1: v1("memory", "pids", "cpu", "freezer"),
    });
    expect(read("memory", "s", "memory.limit_in_bytes")).toBe("67108864");
    expect(read("pids", "s", "pids.max")).toBe("100");
    expect([read("cpu", "s", "cpu.cfs_period_us"), read("cpu", "s", "cpu.cfs_quota_us")]).toEqual(["100000", "150000"]);
    expect(read("cpu", "s", "cpu.shares")).toBe("256");
    expect(made.isolation.map((layer) => [layer.name, layer.enforced])).toEqual([
      ["limit_memory", true],
      ["limit_cpu", true],
      ["limit_pids", true],
    ]);
    expect(made.freezer).toEqual({ kind: "v1", folder: join(base, "freezer", "s") });
    expect(made.folders).toHaveLength(5);
  });
  it("prefers version 2 and its freezer", () => {
    mkdirSync(join(base, "unified", "s"));
    writeFileSync(join(base, "unified", "s", "cgroup.freeze"), "0");
    writeFileSync(join(base, "unified", "cgroup.subtree_control"), "cpu memory pids");
    const made = makeCgroups("s", limits, {
      unified: join(base, "unified"),
      unifiedControllers: ["cpu", "memory", "pids"],
      v1: v1("memory", "freezer"),
    });
    expect([read("unified", "s", "memory.max"), read("unified", "s", "memory.swap.max")]).toEqual(["67108864", "0"]);
    expect(read("unified", "s", "cpu.max")).toBe("150000 100000");
    expect(read("unified", "s", "cpu.weight")).toBe("25");
    expect(made.freezer).toEqual({ kind: "v2", folder: join(base, "unified", "s") });
    expect(made.folders).toEqual([join(base, "unified", "s")]);
    expect(made.isolation.every((layer) => layer.enforced && layer.detail.endsWith("cgroup v2"))).toBe(true);
  });
  it("makes a folder at the top where the own cgroup holds a session's processes and cannot pass controllers on", () => {
    const mount = join(base, "unified");
    // A folder in place of the file stands for EBUSY.
    mkdirSync(join(mount, "session.scope", "cgroup.subtree_control"), { recursive: true });
    mkdirSync(join(mount, "openshell"));
    for (const parent of [mount, join(mount, "openshell")]) {
      writeFileSync(join(parent, "cgroup.subtree_control"), "cpu memory pids");
    }
    const places: CgroupPlaces = {
      unified: join(mount, "session.scope"),
      unifiedMount: mount,
      unifiedControllers: ["cpuset", "cpu", "memory", "pids"],
      v1: new Map(),
    };
    expect(usableCgroups(places)).toEqual({
      ...places,
      unified: join(mount, "openshell"),
      unifiedControllers: ["memory", "cpu", "pids"],
    });
    expect(read("unified", "openshell", "cpu.weight")).toBe("25");
  });
  it("stays in its own cgroup where that passes controllers on, or where nothing better can be made", () => {
    const mount = join(base, "unified");
    mkdirSync(join(mount, "service"));
    writeFileSync(join(mount, "service", "cgroup.subtree_control"), "cpu memory pids");
    const places: CgroupPlaces = {
      unified: join(mount, "service"),
      unifiedMount: mount,
      unifiedControllers: ["cpu", "memory", "pids"],
      v1: new Map(),
    };
    expect(usableCgroups(places).unified).toBe(join(mount, "service"));
    const closed = { ...places, unified: join(mount, "absent"), unifiedMount: join(base, "absent") };
    expect(usableCgroups(closed)).toEqual({ ...closed, unifiedControllers: [] });
    expect(usableCgroups({ ...places, unifiedControllers: ["hugetlb"] }).unifiedControllers).toEqual(["hugetlb"]);
  });
  it("says what cannot be limited instead of failing or keeping silent", () => {
    const nowhere: CgroupPlaces = { unified: join(base, "absent"), unifiedControllers: ["memory"], v1: new Map() };
    const made = makeCgroups("s", limits, nowhere);
    expect(made.folders).toEqual([]);
    expect(made.freezer).toEqual({ kind: "signals", folder: "" });
    const by = Object.fromEntries(made.isolation.map((layer) => [layer.name, layer]));
    expect(by.limit_memory).toEqual({
      name: "limit_memory",
      enforced: false,
      detail: "no cgroup is delegated to the gateway",
    });
    expect(by.limit_cpu?.enforced).toBe(false);
    // RLIMIT_NPROC holds everywhere.
    expect(by.limit_pids?.enforced).toBe(true);
  });
  it("reports no layer for a limit that nobody asked for", () => {
    const made = makeCgroups(
      "s",
      { memoryBytes: undefined, cpuMillis: undefined, pids: 9 },
      { unified: undefined, unifiedControllers: [], v1: v1("memory", "pids") },
    );
    expect(made.isolation.map(({ name }) => name)).toEqual(["limit_pids"]);
    expect(readdirSync(join(base, "memory"))).toEqual([]);
  });
  it("gives each sandbox a part of the processor of its own, limited or not", () => {
    const unlimited = { memoryBytes: undefined, cpuMillis: undefined, pids: 9 };
    const made = makeCgroups("s", unlimited, { unified: undefined, unifiedControllers: [], v1: v1("cpu", "pids") });
    expect(made.folders).toEqual([join(base, "pids", "s"), join(base, "cpu", "s")]);
    expect(readdirSync(join(base, "cpu", "s"))).toEqual(["cpu.shares"]);
    const places = { unified: join(base, "unified"), unifiedControllers: ["cpu", "pids"], v1: v1("cpu") };
    expect(makeCgroups("t", unlimited, places).folders).toEqual([join(base, "unified", "t")]);
  });
  it("finds and removes what a crash left", async () => {
    const places: CgroupPlaces = {
      unified: join(base, "unified"),
      unifiedControllers: [],
      v1: v1("freezer", "memory"),
    };
    mkdirSync(join(base, "freezer", "s", "child"), { recursive: true });
    mkdirSync(join(base, "unified", "s"));
    const left = existingCgroups("s", places);
    expect(left).toEqual([join(base, "unified", "s"), join(base, "freezer", "s")]);
    await removeCgroups([...left, join(base, "memory", "s")], systemClock);
    expect(existingCgroups("s", places)).toEqual([]);
  });
  it("reports a cgroup that cannot be removed after a bounded wait", async () => {
    mkdirSync(join(base, "memory", "s"));
    writeFileSync(join(base, "memory", "s", "cgroup.procs"), "77\n");
    const clock = { ...systemClock, sleep: () => Promise.resolve() };
    await expect(removeCgroups([join(base, "memory", "s")], clock)).rejects.toThrow(/still holds processes: 77/);
  });
});

import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { type Clock, systemCode } from "@openshell/base";
import type { IsolationLayer } from "@openshell/boundary";
import { DriverError } from "../driver.ts";

/** What one sandbox may use. Undefined: no limit. */
export interface CgroupLimits {
  readonly memoryBytes: bigint | undefined;
  readonly cpuMillis: number | undefined;
  readonly pids: number;
}

/** Cgroups of one sandbox: what init joins, how it is frozen, what could not be limited. */
export interface SandboxCgroups {
  /** Absolute folders, to be removed with the sandbox. */
  readonly folders: readonly string[];
  readonly freezer: { readonly kind: "v2" | "v1" | "signals"; readonly folder: string };
  readonly isolation: readonly IsolationLayer[];
}

/** Where this process may make cgroups, by controller. */
export interface CgroupPlaces {
  /** This process's cgroup v2 folder, if version 2 is mounted, or the one that `usableCgroups` chose. */
  readonly unified: string | undefined;
  /** Where version 2 is mounted. */
  readonly unifiedMount?: string | undefined;
  /** Controllers that version 2 offers there. */
  readonly unifiedControllers: readonly string[];
  /** Version 1: controller → this process's folder. */
  readonly v1: ReadonlyMap<string, string>;
}

type Controller = "memory" | "cpu" | "pids";

/** One CPU period of 100 ms, the kernel's default for both versions. */
const CPU_PERIOD_US = 100_000;
/**
 * What a sandbox weighs where several want the processor, as a part of what everything else does: its supervisor, which others
 * share, and the owner's own work come first. Nothing changes while a processor is free.
 */
const GUEST_WEIGHT = 1 / 4;
/** The kernel's defaults: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.weight), cgroup-v1 cpu.shares. */
const CPU_WEIGHT = 100;
const CPU_SHARES = 1_024;

/**
 * Finds this process's cgroups from the texts of /proc/self/mountinfo and /proc/self/cgroup. Making folders below one's
 * own cgroup keeps the parent's limits in force.
 */
export function findCgroups(mountinfo: string, membership: string, read = readText): CgroupPlaces {
  const own = new Map<string, string>();
  for (const line of membership.split("\n")) {
    const match = /^[0-9]+:([^:]*):(.*)$/.exec(line);
    if (match) for (const controller of match[1]!.split(",")) own.set(controller, match[2]!);
  }
  let unified: string | undefined;
  let unifiedMount: string | undefined;
  const v1 = new Map<string, string>();
  for (const line of mountinfo.split("\n")) {
    const [left = "", right = ""] = line.split(" - ");
    const fields = left.split(" ");
    const [root = "/", mountPoint = ""] = [fields[3], fields[4]];
    const [type, , options = ""] = right.split(" ");
    if (type === "cgroup2" && own.has("") && unified === undefined) {
      unified = folderOf(mountPoint, root, own.get("")!);
      unifiedMount = mountPoint;
    }
    if (type !== "cgroup") continue;
    for (const option of options.split(",")) {
      const path = own.get(option);
      if (path !== undefined && !v1.has(option)) v1.set(option, folderOf(mountPoint, root, path));
    }
  }
  const controllers = unified === undefined ? "" : (read(join(unified, "cgroup.controllers")) ?? "");
  return { unified, unifiedMount, unifiedControllers: controllers.split(/\s+/).filter((name) => name !== ""), v1 };
}

/** A mount may show a subtree only (`root`); a path outside it cannot be reached, and the mount point stands in. */
function folderOf(mountPoint: string, root: string, path: string): string {
  if (root === "/") return resolve(mountPoint, `.${path}`);
  return path === root || path.startsWith(`${root}/`) ? join(mountPoint, path.slice(root.length)) : mountPoint;
}

/** The places of this process. */
export function ownCgroups(): CgroupPlaces {
  return findCgroups(readText("/proc/self/mountinfo") ?? "", readText("/proc/self/cgroup") ?? "");
}

/** Parent of sandboxes' cgroups where the gateway's own cannot pass controllers on. */
const TOP_FOLDER = "openshell";

/**
 * Chooses where version 2 cgroups are made, and leaves only controllers that work there. A cgroup passes controllers on
 * only while it holds no process itself, which a login session's never is: root then makes a folder at the top, as
 * container engines do; a user keeps the own folder, which still freezes and kills.
 */
export function usableCgroups(places: CgroupPlaces): CgroupPlaces {
  const { unified, unifiedMount } = places;
  const offered = (["memory", "cpu", "pids"] as const).filter((name) => places.unifiedControllers.includes(name));
  if (unified === undefined || offered.length === 0) return places;
  const own = passOn(unified, offered);
  const here = { ...places, unifiedControllers: own };
  if (own.length === offered.length || unifiedMount === undefined || unifiedMount === unified) return here;
  const top = join(unifiedMount, TOP_FOLDER);
  if (!tryDo(() => mkdirSync(top), ["EEXIST"])) return here;
  passOn(unifiedMount, offered);
  const there = passOn(top, offered);
  // Only what stands beside it up there is weighed against it.
  if (there.includes("cpu")) weighLess(top, true);
  if (there.length > own.length) return { ...places, unified: top, unifiedControllers: there };
  tryDo(() => rmdirSync(top));
  return here;
}

/** Which of the controllers children of `parent` get. */
function passOn(parent: string, controllers: readonly Controller[]): readonly Controller[] {
  for (const controller of controllers) enableController(parent, controller);
  const enabled = (readText(join(parent, "cgroup.subtree_control")) ?? "").split(/\s+/);
  return controllers.filter((controller) => enabled.includes(controller));
}

/**
 * Makes `name` below each place that limits something, as far as this process may (root, or delegated folders), sets the
 * limits, and chooses how the sandbox is frozen: version 2, else the version 1 freezer, else signals.
 *
 * Never fails for lack of rights: a limit that was asked for and cannot be set becomes an isolation layer that is not in
 * force, which a policy's minimum can refuse. An existing folder of that name is used again (a crash between steps).
 */
export function makeCgroups(name: string, limits: CgroupLimits, places: CgroupPlaces): SandboxCgroups {
  const folders: string[] = [];
  const made = new Map<string, string | undefined>();
  const make = (parent: string): string | undefined => {
    if (!made.has(parent)) {
      const folder = join(parent, name);
      const ok = tryDo(() => mkdirSync(folder, { recursive: false }), ["EEXIST"]);
      made.set(parent, ok ? folder : undefined);
      if (ok) folders.push(folder);
    }
    return made.get(parent);
  };

  const { unified } = places;
  const v2 = unified === undefined ? undefined : make(unified);
  const isolation = [
    limit("memory", limits.memoryBytes === undefined ? undefined : String(limits.memoryBytes)),
    limit("cpu", limits.cpuMillis === undefined ? undefined : String(limits.cpuMillis)),
    limit("pids", String(limits.pids)),
    // A limit that nobody asked for is no layer: its absence reduces nothing.
  ].filter((layer) => layer !== undefined);
  shareProcessor();
  return { folders, freezer: chooseFreezer(), isolation };

  /** The scheduler divides time between groups before it does between processes: a fork bomb weighs as much as one sandbox. */
  function shareProcessor(): void {
    const inV2 = v2 !== undefined && places.unifiedControllers.includes("cpu");
    const parent = places.v1.get("cpu");
    const folder = inV2 || parent === undefined ? v2 : make(parent);
    if (folder !== undefined) weighLess(folder, inV2);
  }

  function limit(controller: Controller, value: string | undefined): IsolationLayer | undefined {
    const layer = `limit_${controller}`;
    if (value === undefined) return undefined;
    if (v2 !== undefined && places.unifiedControllers.includes(controller) && setLimit(v2, controller, value, true)) {
      return { name: layer, enforced: true, detail: `${value}, cgroup v2` };
    }
    const parent = places.v1.get(controller);
    const folder = parent === undefined ? undefined : make(parent);
    if (folder !== undefined && setLimit(folder, controller, value, false)) {
      return { name: layer, enforced: true, detail: `${value}, cgroup v1` };
    }
    if (controller === "pids")
      return { name: layer, enforced: true, detail: `${value}, by RLIMIT_NPROC of the sandbox's user namespace` };
    return { name: layer, enforced: false, detail: "no cgroup is delegated to the gateway" };
  }

  function chooseFreezer(): SandboxCgroups["freezer"] {
    if (v2 !== undefined && readText(join(v2, "cgroup.freeze")) !== undefined) return { kind: "v2", folder: v2 };
    const parent = places.v1.get("freezer");
    const folder = parent === undefined ? undefined : make(parent);
    return folder === undefined ? { kind: "signals", folder: "" } : { kind: "v1", folder };
  }
}

/** Folders called `name` that exist in this process's places: also what a crash left before it was recorded. */
export function existingCgroups(name: string, places: CgroupPlaces): readonly string[] {
  const parents = new Set([...(places.unified === undefined ? [] : [places.unified]), ...places.v1.values()]);
  return [...parents].map((parent) => join(parent, name)).filter((folder) => existsSync(folder));
}

/** Which limits can be set here, by setting them on a cgroup that is removed again. */
export async function probeLimits(
  name: string,
  places: CgroupPlaces,
  clock: Clock,
): Promise<{ cpu: boolean; memory: boolean }> {
  const { folders, isolation } = makeCgroups(name, { memoryBytes: 64n << 20n, cpuMillis: 1_000, pids: 64 }, places);
  await removeCgroups(folders, clock);
  const enforced = (layer: string): boolean => isolation.some((entry) => entry.name === layer && entry.enforced);
  return { cpu: enforced("limit_cpu"), memory: enforced("limit_memory") };
}

/** Children get a controller only when the parent passes it on, which fails while the parent holds processes itself: then move out first. */
function enableController(parent: string, controller: Controller): void {
  const enabled = (readText(join(parent, "cgroup.subtree_control")) ?? "").split(/\s+/);
  if (enabled.includes(controller)) return;
  const enable = (): boolean => tryDo(() => writeFileSync(join(parent, "cgroup.subtree_control"), `+${controller}`));
  if (enable()) return;
  const members = (readText(join(parent, "cgroup.procs")) ?? "").trim().split("\n");
  if (members.length !== 1 || members[0] !== String(process.pid)) return;
  const leaf = join(parent, "openshell-gateway");
  if (!tryDo(() => mkdirSync(leaf), ["EEXIST"])) return;
  if (tryDo(() => writeFileSync(join(leaf, "cgroup.procs"), String(process.pid)))) enable();
}

function weighLess(folder: string, v2: boolean): void {
  const [file, weight] = v2 ? ["cpu.weight", CPU_WEIGHT] : ["cpu.shares", CPU_SHARES];
  tryDo(() => writeFileSync(join(folder, file), String(weight * GUEST_WEIGHT)));
}

function setLimit(folder: string, controller: Controller, value: string, v2: boolean): boolean {
  const set = (file: string, text: string): boolean => tryDo(() => writeFileSync(join(folder, file), text));
  switch (controller) {
    case "memory": {
      const limited = set(v2 ? "memory.max" : "memory.limit_in_bytes", value);
      // Without this the limit would only move pages to swap. A kernel without swap accounting lacks the file.
      if (v2) set("memory.swap.max", "0");
      else set("memory.memsw.limit_in_bytes", value);
      return limited;
    }
    case "pids":
      return set("pids.max", value);
    case "cpu": {
      const quota = Math.max(1_000, Math.round((Number(value) * CPU_PERIOD_US) / 1_000));
      if (v2) return set("cpu.max", `${quota} ${CPU_PERIOD_US}`);
      return set("cpu.cfs_period_us", String(CPU_PERIOD_US)) && set("cpu.cfs_quota_us", String(quota));
    }
  }
}

/** Attempts at removing a cgroup whose last processes are being reaped. */
const REMOVE_ATTEMPTS = 50;
const REMOVE_PAUSE_MS = 10;

/** Processes in the sandbox's cgroups, for ending what was never recorded. */
export function cgroupMembers(folders: readonly string[]): readonly number[] {
  const pids = new Set<number>();
  for (const folder of folders) {
    for (const line of (readText(join(folder, "cgroup.procs")) ?? "").split("\n"))
      if (line !== "") pids.add(Number(line));
  }
  return [...pids];
}

/**
 * Removes the folders and what lies below them. A cgroup with processes cannot be removed: the caller has ended them,
 * and the kernel may need a moment. Throws `delete_failed` after half a second.
 */
export async function removeCgroups(folders: readonly string[], clock: Clock): Promise<void> {
  for (const folder of folders) {
    for (let attempt = 1; !removeTree(folder); attempt++) {
      if (attempt >= REMOVE_ATTEMPTS) {
        throw new DriverError(
          "delete_failed",
          `cgroup ${folder} still holds processes: ${cgroupMembers([folder]).join(", ") || "unknown"}`,
          {
            retryable: true,
            next: "Retry the deletion; end these processes if they are not the sandbox's",
          },
        );
      }
      await clock.sleep(REMOVE_PAUSE_MS);
    }
  }
}

function removeTree(folder: string): boolean {
  try {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) removeTree(join(folder, entry.name));
    }
  } catch (error) {
    return systemCode(error) === "ENOENT";
  }
  return tryDo(() => rmdirSync(folder), ["ENOENT"]);
}

/** Runs it; false on a system error other than those tolerated. Anything else is a bug and thrown. */
function tryDo(action: () => void, tolerated: readonly string[] = []): boolean {
  try {
    action();
    return true;
  } catch (error) {
    const code = systemCode(error);
    if (code === undefined) throw error;
    return tolerated.includes(code);
  }
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

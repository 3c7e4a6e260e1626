import { lstatSync, readdirSync, readFileSync, type Stats, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { REAPER_VARIABLE } from "./enter.ts";

/**
 * What a test left behind: takes an inventory before and after, and names the difference. Kernel objects disappear a
 * little after the process that held them, so the comparison waits.
 */

/** Kinds of things that can leak, each a set of descriptions. */
export interface Inventory {
  readonly processes: ReadonlySet<string>;
  /** Mounts of the test's mount namespace. */
  readonly mounts: ReadonlySet<string>;
  /** Control groups with the product's name in their path. */
  readonly cgroups: ReadonlySet<string>;
  /** Listening, connected or bound sockets of the test network, TCP, UDP, raw and unix. */
  readonly sockets: ReadonlySet<string>;
  readonly links: ReadonlySet<string>;
  /** Paths below the watched folders. */
  readonly files: ReadonlySet<string>;
  readonly watched: readonly string[];
}

const KINDS = ["processes", "mounts", "cgroups", "sockets", "links", "files"] as const;
const TCP_STATES_ENDING = new Set(["04", "05", "06", "07", "08", "09", "0B"]);
/** Files counted below the watched folders; more is an error in the test. */
const MAX_FILES = 100_000;

function lines(path: string): string[] {
  try {
    return readFileSync(path, "utf8").split("\n").filter(Boolean);
  } catch {
    return [];
  }
}

/** A row of the process table. */
export interface ProcessEntry {
  readonly pid: number;
  readonly parent: number;
  readonly state: string;
  readonly description: string;
}

function processTable(): ProcessEntry[] {
  const table: ProcessEntry[] = [];
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = lines(`/proc/${name}/stat`)[0];
    // comm may hold spaces and parentheses: the fields begin after the last one.
    const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
    if (stat === undefined || fields === undefined) continue;
    const argv = lines(`/proc/${name}/cmdline`).join(" ").replaceAll("\0", " ").trim();
    const command = argv || stat.slice(stat.indexOf("("), stat.lastIndexOf(")") + 1);
    // Pid and start time (field 22) identify a process for good.
    const description = `${name} (started ${fields[19]}): ${command.slice(0, 300)}`;
    table.push({ pid: Number(name), parent: Number(fields[1]), state: fields[0]!, description });
  }
  return table;
}

/** Descendants of the run's subreaper: whatever tests started, daemons included. Zombies hold nothing and are left out. */
export function runProcesses(): readonly ProcessEntry[] {
  const reaper = Number(process.env[REAPER_VARIABLE]);
  if (!reaper) throw new Error("no subreaper: run the tests with node tests/run.ts");
  const children = Map.groupBy(processTable(), (entry) => entry.parent);
  const found: ProcessEntry[] = [];
  const pending = [reaper];
  for (let pid = pending.pop(); pid !== undefined; pid = pending.pop()) {
    for (const child of children.get(pid) ?? []) {
      pending.push(child.pid);
      if (child.state !== "Z") found.push(child);
    }
  }
  return found;
}

function mounts(): Set<string> {
  const found = new Set<string>();
  for (const line of lines("/proc/self/mountinfo")) {
    const [id, , , root, point] = line.split(" ");
    found.add(`${id} ${root} on ${point}`);
  }
  return found;
}

/** True when it is another user's, or processes are in it and none of this run: it belongs to another run on this machine. */
function isForeign(cgroup: string, own: ReadonlySet<string>): boolean {
  if (statSync(cgroup, { throwIfNoEntry: false })?.uid !== process.getuid?.()) return true;
  const inside = [cgroup, join(cgroup, "workload")].flatMap((folder) => lines(join(folder, "cgroup.procs")));
  return inside.length > 0 && !inside.some((pid) => own.has(pid));
}

function cgroups(): Set<string> {
  const found = new Set<string>();
  const own = new Set(runProcesses().map((entry) => String(entry.pid)));
  const visit = (folder: string, depth: number) => {
    let entries: string[];
    try {
      entries = readdirSync(folder, { withFileTypes: true })
        .filter((entry) => entry.isDirectory())
        .map((entry) => join(folder, entry.name));
    } catch {
      return;
    }
    for (const entry of entries) {
      if (/openshell/i.test(entry) && isForeign(entry, own)) continue;
      if (/openshell/i.test(entry)) found.add(entry);
      if (depth < 12) visit(entry, depth + 1);
    }
  };
  visit("/sys/fs/cgroup", 0);
  return found;
}

function sockets(): Set<string> {
  const found = new Set<string>();
  for (const table of ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"]) {
    for (const line of lines(`/proc/self/net/${table}`).slice(1)) {
      const fields = line.trim().split(/\s+/);
      if (table.startsWith("tcp") && TCP_STATES_ENDING.has(fields[3] ?? "")) continue;
      found.add(`${table} ${fields[1]} → ${fields[2]} (socket ${fields[9]})`);
    }
  }
  for (const line of lines("/proc/self/net/unix").slice(1)) {
    const fields = line.trim().split(/\s+/);
    // Unnamed pairs are the pipes of processes, which are counted themselves.
    if (fields[7] !== undefined) found.add(`unix ${fields[7]} (socket ${fields[6]})`);
  }
  return found;
}

function files(folders: readonly string[]): Set<string> {
  const found = new Set<string>();
  const visit = (path: string) => {
    let stat: Stats;
    try {
      stat = lstatSync(path);
    } catch {
      return;
    }
    found.add(path);
    if (found.size > MAX_FILES) throw new Error(`more than ${MAX_FILES} files below ${folders.join(", ")}`);
    if (!stat.isDirectory()) return;
    try {
      for (const name of readdirSync(path)) visit(join(path, name));
    } catch {
      found.add(`${path}/ (unreadable)`);
    }
  };
  for (const folder of folders) visit(folder);
  return found;
}

/** What exists now. `watched` folders are counted file by file. */
export function takeInventory(watched: readonly string[] = []): Inventory {
  return {
    processes: new Set(runProcesses().map((entry) => entry.description)),
    mounts: mounts(),
    cgroups: cgroups(),
    sockets: sockets(),
    links: new Set(
      lines("/proc/self/net/dev")
        .slice(2)
        .map((line) => line.split(":")[0]!.trim()),
    ),
    files: files(watched),
    watched,
  };
}

/** What is there now and was not in `before`, one line each. */
export function leaksSince(before: Inventory): string[] {
  const now = takeInventory(before.watched);
  return KINDS.flatMap((kind) => [...now[kind].difference(before[kind])].map((what) => `${kind}: ${what}`));
}

/**
 * Waits until nothing is left of what came after `before`; throws with the list after `withinMs`. Control groups are the
 * whole machine's, where another run may make and remove its own meanwhile: one that leaked is there all the time.
 */
export async function expectNoLeaks(before: Inventory, withinMs = 5_000): Promise<void> {
  const end = performance.now() + withinMs;
  let always: ReadonlySet<string> | undefined;
  for (;;) {
    const found = leaksSince(before);
    const cgroups = new Set(found.filter((leak) => leak.startsWith("cgroups: ")));
    always = always?.intersection(cgroups) ?? cgroups;
    const leaks = found.filter((leak) => !cgroups.has(leak) || always?.has(leak));
    if (leaks.length === 0) return;
    if (performance.now() > end) throw new Error(`left behind:\n  ${leaks.join("\n  ")}`);
    await sleep(25);
  }
}

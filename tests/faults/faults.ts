import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import type { FaultName } from "./fault-names.ts";
import type { ModelSandbox } from "./model.ts";
import type { PlannedStrike } from "./schedule.ts";
import { kill, type SandboxProcesses, type World } from "./world.ts";

/** A fault that is ready to strike. */
export interface Armed {
  /** Strikes now. False when there was nothing to strike: the process had ended, or was not there yet. */
  strike(): boolean | Promise<boolean>;
  /** Takes it back; faults that cannot be taken back have none. */
  readonly heal?: () => void | Promise<void>;
}

/** Looks up what it needs before the operation begins, so that the strike itself takes no time. */
type Fault = (world: World, planned: PlannedStrike, target: string) => Promise<Armed> | Armed;

/** Below what either part has open: nothing new can be opened, and what is open goes on. */
const FEW_DESCRIPTORS = 12;
const HOUR_MS = 3_600_000;
/** Within the 24 h in which a request id is remembered. */
const JUMPS_MS = [90_000, 2 * HOUR_MS, 12 * HOUR_MS, -90_000, -2 * HOUR_MS, -12 * HOUR_MS];

export const FAULTS: Readonly<Record<FaultName, Fault>> = {
  "kill-gateway": (world) => ({ strike: () => killAll([world.gatewayPid()]) }),
  "kill-host": (world, { choice }) => {
    const known = world.hostPids();
    return { strike: () => killOne(known.length > 0 ? known : world.hostPids(), choice) };
  },
  "kill-both": (world) => {
    const known = world.hostPids();
    return { strike: () => killAll([world.gatewayPid(), ...(known.length > 0 ? known : world.hostPids())]) };
  },
  "kill-helper": (world, { choice }, target) => ({
    strike: () => inSandbox(world, target, ({ helpers }) => killOne(helpers, choice)),
  }),
  "kill-init": (world, _planned, target) => ({
    strike: () =>
      inSandbox(world, target, ({ init }, sandbox) => {
        const struck = kill(init);
        if (struck) sandbox.broken = "init";
        return struck;
      }),
  }),
  "kill-agent": (world, _planned, target) => ({
    strike: () =>
      inSandbox(world, target, ({ agent }, sandbox) => {
        const struck = agent !== undefined && kill(agent);
        if (struck) sandbox.broken ??= "agent";
        return struck;
      }),
  }),
  "full-disk": (world) => {
    const filler = join(world.user.home.state, "filler");
    return { strike: () => fill(filler), heal: () => rmSync(filler, { force: true }) };
  },
  "descriptors-gateway": (world) => withoutDescriptors([world.gatewayPid() ?? 0]),
  "descriptors-host": (world) => withoutDescriptors(world.hostPids()),
  "clock-gateway": (world, planned) => jump(world, "gateway", planned),
  "clock-host": (world, planned) => jump(world, "host", planned),
};

function killAll(pids: readonly (number | undefined)[]): boolean {
  let struck = false;
  for (const pid of pids) if (pid !== undefined && kill(pid)) struck = true;
  return struck;
}

function killOne(pids: readonly number[], choice: number): boolean {
  const pid = pids[choice % Math.max(1, pids.length)];
  return pid !== undefined && kill(pid);
}

/** In the sandbox of the operation, else in another one that runs. */
function inSandbox(
  world: World,
  target: string,
  act: (processes: SandboxProcesses, sandbox: ModelSandbox) => boolean,
): boolean {
  const others = world.model.existing().filter(({ name }) => name !== target);
  for (const sandbox of [world.model.sandboxes.get(target), ...others]) {
    const processes = sandbox === undefined ? undefined : world.processesOf(sandbox.name);
    if (processes !== undefined && act(processes, sandbox!)) {
      if (sandbox!.name !== target) world.note(`struck ${sandbox!.name} instead of ${target}`);
      return true;
    }
  }
  return false;
}

/** Writes until nothing fits, the last bytes too. */
function fill(path: string): boolean {
  const fd = openSync(path, "w");
  try {
    for (let size = 1 << 20; size >= 1; ) {
      try {
        writeSync(fd, Buffer.alloc(size));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
        size = size >> 4;
      }
    }
    return true;
  } finally {
    closeSync(fd);
  }
}

async function withoutDescriptors(pids: readonly number[]): Promise<Armed> {
  const before = new Map<number, string>();
  for (const pid of pids) {
    const soft = await prlimit(pid, ["--nofile", "--raw", "--noheadings", "--output", "SOFT"]);
    if (soft !== undefined) before.set(pid, soft.trim());
  }
  const set = async (limit: (soft: string) => string): Promise<boolean> => {
    const done = await Promise.all([...before].map(([pid, soft]) => prlimit(pid, [`--nofile=${limit(soft)}:`])));
    return done.some((output) => output !== undefined);
  };
  return { strike: () => set(() => String(FEW_DESCRIPTORS)), heal: () => set((soft) => soft).then(() => {}) };
}

/** What it says; undefined when the process is gone. */
async function prlimit(pid: number, args: readonly string[]): Promise<string | undefined> {
  const child = spawn("prlimit", ["--pid", String(pid), ...args], { stdio: ["ignore", "pipe", "ignore"] });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, "close") as Promise<[number]>]);
  return code === 0 ? output : undefined;
}

function jump(world: World, part: "gateway" | "host", { choice }: PlannedStrike): Armed {
  const offset = JUMPS_MS[choice % JUMPS_MS.length]!;
  return {
    strike: () => {
      world.setClock(part, offset);
      world.note(`the clock of the ${part} is ${offset / 1000} s off`);
      return true;
    },
    heal: () => world.setClock(part, 0),
  };
}

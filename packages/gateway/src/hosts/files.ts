import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { checkSocketPath } from "@openshell/base";

/** Log files of hosts that are kept after their end, the youngest ones: enough to read why they died. */
export const KEPT_HOST_LOGS = 20;

/** Where one host has its files. */
export interface HostFiles {
  /** 0700. */
  readonly folder: string;
  readonly lockFile: string;
  readonly controlSocket: string;
  readonly logFile: string;
}

/** `root`: folder of all hosts. Eight of a UUID's random digits tell the hosts of one gateway apart in short socket paths. */
export function hostFiles(root: string, logs: string, hostId: string): HostFiles {
  const short = hostId.slice(0, 8);
  const folder = join(root, short);
  return {
    folder,
    lockFile: join(folder, "lock"),
    controlSocket: checkSocketPath(join(folder, "poke.sock")),
    logFile: join(logs, `host-${short}.log`),
  };
}

/** Removes what ended hosts left: their folders, and the oldest of their logs. `live`: ids of hosts that may still run. */
export async function sweepHostFiles(root: string, logs: string, live: readonly string[]): Promise<void> {
  const kept = new Set(live.map((id) => id.slice(0, 8)));
  const folders = await readdir(root).catch(() => []);
  for (const name of folders) if (!kept.has(name)) await rm(join(root, name), { recursive: true, force: true });

  const names = (await readdir(logs).catch(() => [])).filter((name) => /^host-[0-9a-f]{8}\.log/.test(name));
  const ended = names.filter((name) => !kept.has(name.slice(5, 13)));
  if (ended.length <= KEPT_HOST_LOGS) return;
  const dated = await Promise.all(
    ended.map(async (name) => ({ name, time: (await stat(join(logs, name)).catch(() => undefined))?.mtimeMs ?? 0 })),
  );
  const old = dated.toSorted((a, b) => b.time - a.time).slice(KEPT_HOST_LOGS);
  for (const { name } of old) await rm(join(logs, name), { force: true });
}

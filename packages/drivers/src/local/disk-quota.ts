import { execFile } from "node:child_process";
import { readdir } from "node:fs/promises";
import { describeError, systemCode } from "@openshell/base";
import type { IsolationLayer } from "@openshell/boundary";
import { makeFolder, type SandboxFolders } from "./state.ts";

/** Project quotas of one file system, with limits in force. Ids and limits are the kernel's: nothing is remembered here. */
export interface DiskQuota {
  /**
   * Gives folders that are empty, or the project's already, to a project and limits it; 0 takes the limit away. False: the
   * project is in use by somebody else. Rejects with the kernel's reason.
   */
  apply(project: number, limitBytes: number, folders: readonly string[]): Promise<boolean>;
}

/** `openshell-init quota …` (native/init/quota.c): exit status and complaint. */
export type QuotaProgram = (
  args: readonly string[],
) => Promise<{ readonly status: number; readonly complaint: string }>;

const NOT_IN_FORCE = 3;
const IN_USE = 4;
/** It makes a handful of system calls. Milliseconds. */
const PROGRAM_LIMIT_MS = 10_000;
const KIB = 1_024;
const MIB = 2 ** 20;
const GIB = 2 ** 30;

export function quotaProgram(initPath: string): QuotaProgram {
  return (args) =>
    new Promise((resolve, reject) => {
      const options = { env: {}, cwd: "/", timeout: PROGRAM_LIMIT_MS, killSignal: "SIGKILL" } as const;
      execFile(initPath, ["quota", ...args], options, (error, _, complaint) => {
        if (error === null) resolve({ status: 0, complaint });
        else if (typeof error.code === "number") resolve({ status: error.code, complaint });
        else reject(error);
      });
    });
}

/** The quotas of the file system that holds `place`; undefined where no project has a limit there, or none may be set. */
export async function openDiskQuota(place: string, run: QuotaProgram): Promise<DiskQuota | undefined> {
  const found = await run([place]).catch(() => undefined);
  if (found?.status !== 0) return undefined;
  return {
    async apply(project, limitBytes, folders) {
      const { status, complaint } = await run([
        place,
        String(project),
        String(Math.ceil(limitBytes / KIB)),
        ...folders,
      ]);
      if (status === 0) return true;
      if (status === IN_USE) return false;
      throw new Error(status === NOT_IN_FORCE ? "quotas were switched off" : complaint.trim() || `status ${status}`);
    },
  };
}

/** How a sandbox's disk limit is kept. */
export interface DiskLimit {
  readonly how: "none" | "quota" | "watched";
  /** Why it is only watched, where more was tried. */
  readonly why?: string;
}

/**
 * Before a launch: puts what the sandbox will write under a quota, when its folders are new or were put under it then.
 * Files of a sandbox that was made without one belong to no project, and names cannot move between projects: it stays watched.
 */
export async function limitDisk(
  sandboxId: string,
  wish: { readonly project: number | undefined; readonly limitBytes: number },
  folders: SandboxFolders,
  quota: DiskQuota | undefined,
): Promise<DiskLimit> {
  const { project, limitBytes } = wish;
  const without = limitBytes === 0 ? "none" : "watched";
  const known = await folders.readQuota(sandboxId);
  if (quota === undefined || project === undefined || (limitBytes === 0 && known === undefined))
    return { how: without };
  const own = [folders.home(sandboxId), folders.overlay(sandboxId), folders.work(sandboxId)];
  try {
    for (const folder of own) {
      if (known === undefined && (await isFilled(folder))) {
        return { how: without, why: "the sandbox was made without a quota" };
      }
      await makeFolder(folder, 0o700);
    }
    if (!(await quota.apply(known ?? project, limitBytes, own))) {
      return { how: without, why: `project ${project} of the file system is in use by somebody else` };
    }
    if (known === undefined) await folders.writeQuota(sandboxId, project);
    return { how: limitBytes === 0 ? "none" : "quota" };
  } catch (error) {
    return { how: without, why: describeError(error) };
  }
}

/** Forgets the limit of a sandbox whose files are gone. Left behind it would be overwritten by the project's next owner. */
export async function releaseQuota(project: number | undefined, quota: DiskQuota | undefined): Promise<void> {
  if (project !== undefined) await quota?.apply(project, 0, []).catch(() => {});
}

/** A reader may ask for prevention: that is a layer of its own. */
export function diskLayers({ how, why }: DiskLimit, limitBytes: number): readonly IsolationLayer[] {
  if (how === "none") return [];
  const limit =
    limitBytes < GIB ? `${Math.ceil(limitBytes / MIB)} MiB` : `${Number((limitBytes / GIB).toFixed(1))} GiB`;
  if (how === "watched") {
    const because = why === undefined ? "" : ` (no project quota: ${why})`;
    const detail = `watched: a sandbox whose files take more than ${limit} is stopped${because}`;
    return [{ name: "disk_limit", enforced: true, detail }];
  }
  return [
    { name: "disk_limit", enforced: true, detail: `project quota of ${limit}` },
    { name: "disk_quota", enforced: true, detail: `writes beyond ${limit} fail` },
  ];
}

async function isFilled(folder: string): Promise<boolean> {
  try {
    return (await readdir(folder)).length > 0;
  } catch (error) {
    if (systemCode(error) === "ENOENT") return false;
    throw error;
  }
}

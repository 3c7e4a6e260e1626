import { createHash, randomBytes } from "node:crypto";
import { chmod, lstat, mkdir, readdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { escapeUntrusted, systemCode } from "@openshell/base";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import { z } from "zod";
import { DriverError, type SandboxIntent, type StartedSandbox } from "../driver.ts";
import { mounts } from "./host-files.ts";
import { isPassing } from "./launch-error.ts";
import { isWithin } from "./root-view.ts";
import { NO_VOLUMES, type VolumeRecord, volumeRecordSchema } from "./volumes/volume-care.ts";

/** Written before anything is started, so that whatever a crash leaves behind can be found and undone. */
export interface LaunchRecord {
  readonly sandboxId: string;
  readonly name: string;
  readonly workspace: string;
  readonly generation: bigint;
  /** SHA-256 of the attach nonce: a repeated call with another nonce is another launch. */
  readonly nonceHash: string;
  /** argv[0] of launcher and init. */
  readonly title: string;
  readonly controlFolder: string;
  /** Every cgroup made for the sandbox, also those of earlier generations. */
  readonly cgroups: readonly string[];
  /** What the end of the sandbox has to undo and look for in its volumes. */
  readonly volumes: VolumeRecord;
  /** What was asked, for people who look; nothing reads it back. */
  readonly request: Pick<SandboxIntent, "hostname" | "process" | "volumes" | "root" | "idBlock">;
}

/** Folders of sandboxes that no record knew: with the time at which they were set aside, in milliseconds, and their id. */
const LOST = ".lost-";
const LOST_NAME = /^\.lost-(\d{1,15})-/;
/** What was set aside is there for so long: a restored database is noticed within days. */
export const LOST_KEPT_MS = 7 * 24 * 60 * 60 * 1000;
/** Folders kept beside those of sandboxes. */
export const MAX_LOST = 64;

/** A record of a sandbox with as many volumes as it may have is a tenth of it. Bytes. */
const MAX_RECORD_BYTES = 16 * 1024 * 1024;

const bigintText = z
  .string()
  .regex(/^[0-9]{1,20}$/)
  .transform(BigInt);

const launchSchema = z.object({
  version: z.literal(1),
  sandboxId: z.string(),
  name: z.string(),
  workspace: z.string(),
  generation: bigintText,
  nonceHash: z.string(),
  title: z.string(),
  controlFolder: z.string(),
  cgroups: z.array(z.string()),
  volumes: volumeRecordSchema.default(NO_VOLUMES as z.infer<typeof volumeRecordSchema>),
  request: z.custom<LaunchRecord["request"]>(
    (value) => typeof value === "object" && value !== null && !Array.isArray(value),
  ),
});

/** Which image a sandbox stands on: an unpacked archive by its digest, or a folder where it is. */
export type ImageReference =
  | { readonly kind: "archive"; readonly digest: string }
  | { readonly kind: "folder"; readonly path: string };

const imageSchema = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("archive"), digest: z.string().regex(/^[0-9a-f]{64}$/) }),
  z.object({ kind: z.literal("folder"), path: z.string().startsWith("/") }),
]);

const quotaSchema = z.object({ project: z.int().positive() });

const layerSchema = z.object({ name: z.string(), enforced: z.boolean(), detail: z.string() });

const startedSchema = z.object({
  sandboxId: z.string(),
  generation: bigintText,
  record: z.object({ bootId: z.string(), pid: z.int().positive(), startTime: bigintText }),
  boundary: z.object({ kind: z.literal("local"), socketPath: z.string(), netnsCookie: bigintText }),
  layout: z.object({
    home: z.string(),
    workingDirectory: z.string(),
    uid: z.int(),
    gid: z.int(),
    readOnlyPaths: z.array(z.string()),
    readWritePaths: z.array(z.string()),
    processLimit: z.int().positive(),
    environment: z.record(z.string(), z.string()),
    imageRoot: z.string().startsWith("/").optional(),
  }),
  isolation: z.array(layerSchema),
});

export function nonceHash(nonce: Uint8Array): string {
  return createHash("sha256").update(nonce).digest("hex");
}

/** The folder `<state>/sandboxes` and what the driver keeps in it. */
export class SandboxFolders {
  readonly root: string;

  constructor(root: string) {
    this.root = root;
  }

  /** Folder of one sandbox. The id is checked by the driver before it becomes a path. */
  of(sandboxId: string): string {
    return join(this.root, sandboxId);
  }

  home(sandboxId: string): string {
    return join(this.of(sandboxId), "home");
  }

  /** Folders of the sandbox's own besides its home. */
  work(sandboxId: string): string {
    return join(this.of(sandboxId), "work");
  }

  /** Writable layer of an image root: `upper` and `work`, kept as long as the home. */
  overlay(sandboxId: string): string {
    return join(this.of(sandboxId), "overlay");
  }

  /** What the sandbox puts over its image; made anew for each launch. */
  seed(sandboxId: string): string {
    return join(this.of(sandboxId), "seed");
  }

  trust(sandboxId: string): string {
    return join(this.of(sandboxId), "trust");
  }

  async exists(sandboxId: string): Promise<boolean> {
    return (await lstat(this.of(sandboxId)).catch(() => undefined)) !== undefined;
  }

  /** Ids that have a folder, also unfinished ones. */
  async ids(): Promise<readonly string[]> {
    const entries = await readdir(this.root, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory() && !entry.name.startsWith(".")).map((entry) => entry.name);
  }

  async readLaunch(sandboxId: string): Promise<LaunchRecord | undefined> {
    const value = await this.#read(sandboxId, "launch.json", launchSchema);
    if (value === undefined) return undefined;
    const { version: _, ...record } = value;
    return record;
  }

  writeLaunch(record: LaunchRecord): Promise<void> {
    return replaceFile(join(this.of(record.sandboxId), "launch.json"), { version: 1, ...record });
  }

  /** What the sandbox's root was made of; undefined for the host's system. */
  readImage(sandboxId: string): Promise<ImageReference | undefined> {
    return this.#read(sandboxId, "image.json", imageSchema);
  }

  /** Kept for the sandbox's life: a later start does not ask the archive again. */
  writeImage(sandboxId: string, image: ImageReference): Promise<void> {
    return replaceFile(join(this.of(sandboxId), "image.json"), image);
  }

  /** The project that the sandbox's files are counted for; undefined where no quota limits them. */
  async readQuota(sandboxId: string): Promise<number | undefined> {
    return (await this.#read(sandboxId, "quota.json", quotaSchema))?.project;
  }

  /** Kept for the sandbox's life: files belong to the project that their folder had when they were made. */
  writeQuota(sandboxId: string, project: number): Promise<void> {
    return replaceFile(join(this.of(sandboxId), "quota.json"), { project });
  }

  readStarted(sandboxId: string): Promise<StartedSandbox | undefined> {
    return this.#read(sandboxId, "started.json", startedSchema);
  }

  writeStarted(started: StartedSandbox): Promise<void> {
    return replaceFile(join(this.of(started.sandboxId), "started.json"), started);
  }

  removeStarted(sandboxId: string): Promise<void> {
    // Whatever stands in its place.
    return rm(join(this.of(sandboxId), "started.json"), { force: true, recursive: true });
  }

  /** Removes a sandbox's folder whatever modes the agent gave its files. Moved aside first, so that a crash cannot leave half a sandbox under its name. */
  async remove(sandboxId: string): Promise<void> {
    checkNothingMounted(this.of(sandboxId));
    const trash = join(this.root, `.trash-${sandboxId}-${randomBytes(4).toString("hex")}`);
    try {
      await rename(this.of(sandboxId), trash);
    } catch (error) {
      if (systemCode(error) !== "ENOENT") throw error;
    }
    await this.emptyTrash(`.trash-${sandboxId}-`);
  }

  /** Finishes removals that a crash interrupted; `prefix` narrows them. */
  async emptyTrash(prefix = ".trash-"): Promise<void> {
    for (const name of await readdir(this.root)) {
      if (!name.startsWith(prefix)) continue;
      checkNothingMounted(join(this.root, name));
      await removeTree(join(this.root, name));
    }
  }

  /**
   * Moves a sandbox's folder to where nothing looks for sandboxes. Of those that lie there, the newest {@link MAX_LOST} are
   * kept. Undefined: it has no folder.
   */
  async setAside(sandboxId: string, nowMs: number): Promise<string | undefined> {
    checkNothingMounted(this.of(sandboxId));
    const aside = join(this.root, `${LOST}${nowMs}-${sandboxId}`);
    try {
      await rename(this.of(sandboxId), aside);
    } catch (error) {
      if (systemCode(error) === "ENOENT") return undefined;
      throw error;
    }
    await this.dropLost(nowMs);
    return aside;
  }

  /** Removes what was set aside {@link LOST_KEPT_MS} ago, and what is too much. */
  async dropLost(nowMs: number): Promise<void> {
    const lost = (await readdir(this.root)).flatMap((name) => {
      const at = LOST_NAME.exec(name)?.[1];
      return at === undefined ? [] : [{ name, at: Number(at) }];
    });
    lost.sort((a, b) => b.at - a.at || (a.name < b.name ? -1 : 1));
    for (const [index, { name, at }] of lost.entries()) {
      if (index < MAX_LOST && at > nowMs - LOST_KEPT_MS) continue;
      checkNothingMounted(join(this.root, name));
      await removeTree(join(this.root, name));
    }
  }

  async #read<T>(sandboxId: string, file: string, schema: z.ZodType<T>): Promise<T | undefined> {
    const path = join(this.of(sandboxId), file);
    let text: string;
    try {
      text = readTextFile(path, MAX_RECORD_BYTES);
    } catch (error) {
      if (!(error instanceof UnusableFile)) throw error;
      if (error.missing) return undefined;
      throw new DriverError("state_unreadable", `${path} ${error.message}`, {
        next: "Correct what is at that path; or copy the home beside it, and delete the sandbox",
        cause: error,
        retryable: isPassing(error.cause),
      });
    }
    const damaged = (problem: string, cause?: unknown) =>
      new DriverError("state_unreadable", `${path} ${problem}`, {
        next: "Restore the file; or copy the home beside it, and delete the sandbox",
        cause,
      });
    let value: T;
    try {
      value = schema.parse(JSON.parse(text));
    } catch (error) {
      throw damaged("is damaged", error);
    }
    // What another sandbox's record names would be ended with this one.
    const { sandboxId: of = sandboxId } = value as { readonly sandboxId?: string };
    if (of !== sandboxId) throw damaged("is the record of another sandbox");
    return value;
  }
}

/**
 * Replaces a file in one step, without forcing it to the disk: it describes processes, which a power failure ends as well,
 * and the gateway's store holds the durable intent.
 */
export async function replaceFile(path: string, value: object): Promise<void> {
  const temporary = `${path}.${randomBytes(6).toString("hex")}.tmp`;
  const text = JSON.stringify(value, (_, entry) => (typeof entry === "bigint" ? entry.toString() : entry), 1);
  try {
    await writeFile(temporary, text, { mode: 0o600, flag: "wx" });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/**
 * A sandbox's mounts live in its own namespace and are gone with it. One that is visible here is somebody else's folder:
 * removing the tree would empty it.
 */
function checkNothingMounted(folder: string): void {
  const mounted = mounts().find(({ point }) => isWithin(point, folder));
  if (mounted === undefined) return;
  throw new DriverError(
    "delete_failed",
    `something is mounted at ${escapeUntrusted(mounted.point)}, which would be emptied`,
    {
      next: `Unmount it (umount ${escapeUntrusted(mounted.point)}), then delete the sandbox again`,
      retryable: true,
    },
  );
}

/**
 * `rm -rf` for a tree whose owner may have closed folders to itself, or made it deeper than any path can name. No process
 * of the sandbox lives any more, so nothing changes under it; links are removed, never followed.
 */
export async function removeTree(path: string): Promise<void> {
  try {
    await rm(path, { recursive: true, force: true });
  } catch (error) {
    const code = systemCode(error);
    if (code !== "EACCES" && code !== "EPERM" && code !== "ENOTEMPTY" && code !== "ENAMETOOLONG") throw error;
    await flatten(path);
    await rm(path, { recursive: true, force: true });
  }
}

/** Half of PATH_MAX: what lies deeper is moved up. Bytes. */
const LIFTED_PATH_BYTES = 2_048;

/** Opens every folder to its owner, and moves what lies too deep to the top until nothing does. */
async function flatten(root: string): Promise<void> {
  const top = Buffer.from(root);
  const pending = [top];
  let lifted = 0;
  // Names are bytes: the agent may have chosen some that are no UTF-8.
  for (let folder = pending.pop(); folder !== undefined; folder = pending.pop()) {
    const stat = await lstat(folder).catch(() => undefined);
    if (stat === undefined || !stat.isDirectory()) continue;
    await chmod(folder, 0o700);
    for (const entry of await readdir(folder, { withFileTypes: true, encoding: "buffer" })) {
      if (!entry.isDirectory()) continue;
      const path = Buffer.concat([folder, Buffer.from("/"), entry.name]);
      if (path.length <= LIFTED_PATH_BYTES) {
        pending.push(path);
        continue;
      }
      // A folder that is closed to its owner cannot be moved: its own entry for the parent changes.
      await chmod(path, 0o700);
      lifted += 1;
      const target = Buffer.concat([top, Buffer.from(`/.lifted-${randomBytes(6).toString("hex")}-${lifted}`)]);
      await rename(path, target);
      pending.push(target);
    }
  }
}

/** Makes a folder with exactly this mode; keeps one that is there. */
export async function makeFolder(path: string, mode: number): Promise<void> {
  try {
    await mkdir(path, { mode });
    await chmod(path, mode);
  } catch (error) {
    if (systemCode(error) !== "EEXIST") throw error;
  }
}

import { randomBytes } from "node:crypto";
import { mkdir, readdir, rename, rm, statfs } from "node:fs/promises";
import { join } from "node:path";
import { failedPrecondition, invalidField, resourceExhausted } from "@openshell/api/errors.ts";
import { type Clock, describeError, ensureFolder, LogField, systemCode, writeFileAtomic } from "@openshell/base";
import type { Logger } from "pino";
import { StagingLimit } from "./limits.ts";
import {
  archiveProblem,
  discard,
  fileNameProblem,
  hashOf,
  moveUpload,
  newToken,
  readSlot,
  type Slot,
  UPLOAD_FOLDER,
} from "./slot.ts";

export interface StagedArchivesOptions {
  /** The gateway's state folder, 0700. */
  readonly state: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** Largest archive that the driver takes, bytes; 0: none. */
  readonly maxBytes: number;
}

/** What {@link StagedArchives.begin} is asked for. */
export interface SlotRequest {
  readonly workspace: string;
  readonly subject: string;
  readonly fileName: string;
  readonly sizeBytes: bigint;
}

/** Where a caller puts an archive, and how it is then named. */
export interface BegunSlot {
  readonly token: string;
  readonly path: string;
  readonly maxBytes: number;
  readonly expiresAt: number;
}

/** Names in the staging folder. All else in it is rubbish of a crash. */
const SLOT = /^slot-([0-9a-f]{16})$/;
const TAKEN = /^of-([A-Za-z0-9][A-Za-z0-9-]{0,127})$/;
const ARCHIVE = "rootfs.tar";

/** The archive that a sandbox has taken. */
export function takenArchive(state: string, sandboxId: string): string {
  return join(state, "staging", `of-${sandboxId}`, ARCHIVE);
}

/**
 * Archives of root file systems that callers copy into the gateway's own folder: a slot is announced, filled by the caller, and
 * taken by the one sandbox whose creation presents its token. The folder is the truth: each step is a rename, so that a
 * crash leaves a slot that is whole, an archive of a sandbox, or rubbish that the next start removes.
 */
export class StagedArchives implements AsyncDisposable {
  readonly #options: StagedArchivesOptions;
  readonly #folder: string;
  /** By the hash of the token. */
  readonly #slots = new Map<string, Slot>();
  readonly #closed = new AbortController();
  /** Names made before what was there has been looked through: listeners open earlier. */
  #made: Set<string> | undefined = new Set();

  constructor(options: StagedArchivesOptions) {
    this.#options = options;
    this.#folder = join(options.state, "staging");
  }

  /** Takes up what an earlier process left. `isWanted`: whether this sandbox may still have to be made of its archive. */
  async open(isWanted: (sandboxId: string) => Promise<boolean>): Promise<void> {
    const names = await readdir(this.#folder).catch((error: unknown) => {
      if (systemCode(error) === "ENOENT") return [];
      throw error;
    });
    for (const name of names) {
      if (this.#made?.has(name) === true) continue;
      const slotId = SLOT.exec(name)?.[1];
      const slot = slotId === undefined ? undefined : await readSlot(join(this.#folder, name), slotId);
      const sandboxId = TAKEN.exec(name)?.[1];
      if (slot !== undefined && slot.expiresAt > this.#options.clock.now()) this.#keep(slot);
      else if (sandboxId === undefined || !(await isWanted(sandboxId))) await discard(this.#folder, name);
    }
    this.#made = undefined;
  }

  /**
   * Makes a slot. @throws ApiError INVALID_ARGUMENT (name, size), FAILED_PRECONDITION (the driver takes none),
   * RESOURCE_EXHAUSTED (slots, disk).
   */
  async begin(request: SlotRequest): Promise<BegunSlot> {
    const { clock, maxBytes } = this.#options;
    if (maxBytes === 0) {
      throw failedPrecondition("this gateway's compute driver takes no root file system archives", {
        next: "Name an image with --from",
      });
    }
    const { workspace, subject, fileName } = request;
    const problem = fileNameProblem(fileName);
    if (problem !== undefined) throw invalidField("file_name", problem);
    if (request.sizeBytes < 1n || request.sizeBytes > BigInt(maxBytes)) {
      throw invalidField("size_bytes", `must be from 1 to ${maxBytes} ([local] rootfs_tar_max_bytes)`);
    }
    const sizeBytes = Number(request.sizeBytes);
    this.#checkRoom(workspace);
    const id = randomBytes(8).toString("hex");
    const token = newToken();
    const expiresAt = clock.now() + StagingLimit.slotMs;
    const slot: Slot = { id, tokenHash: hashOf(token), workspace, subject, fileName, sizeBytes, expiresAt };
    // Counted before the first wait, so that calls at the same moment cannot exceed the limit together.
    this.#slots.set(slot.tokenHash, slot);
    this.#made?.add(`slot-${id}`);
    const folder = join(this.#folder, `slot-${id}`);
    try {
      await ensureFolder(this.#folder);
      const { bavail, bsize } = await statfs(this.#folder);
      if (sizeBytes > bavail * bsize) {
        throw resourceExhausted(`the gateway's disk has ${bavail * bsize} bytes left, and the archive ${sizeBytes}`, {
          next: "Free space where the gateway keeps its state",
        });
      }
      await mkdir(join(folder, UPLOAD_FOLDER), { recursive: true, mode: 0o700 });
      await writeFileAtomic(join(folder, "slot.json"), JSON.stringify({ version: 1, ...slot }));
    } catch (error) {
      this.#slots.delete(slot.tokenHash);
      await discard(this.#folder, `slot-${id}`).catch(() => {});
      throw error;
    }
    this.#keep(slot);
    return { token, path: join(folder, UPLOAD_FOLDER, fileName), maxBytes, expiresAt };
  }

  /**
   * Gives a slot's archive to a sandbox; from here on the token is worth nothing, whatever comes of the archive. A caller to whom it does
   * not belong changes nothing. @throws ApiError FAILED_PRECONDITION.
   */
  async take(
    token: string,
    { workspace, subject, sandboxId }: Pick<SlotRequest, "workspace" | "subject"> & { readonly sandboxId: string },
  ): Promise<void> {
    const slot = this.#slots.get(hashOf(token));
    const own = slot !== undefined && slot.workspace === workspace && slot.subject === subject;
    if (!own || slot.expiresAt <= this.#options.clock.now()) throw tokenRefused();
    this.#slots.delete(slot.tokenHash);
    const used = `.used-${slot.id}`;
    this.#made?.add(used).add(`of-${sandboxId}`);
    await rename(join(this.#folder, `slot-${slot.id}`), join(this.#folder, used)).catch((error: unknown) => {
      // Somebody cleared the folder.
      throw systemCode(error) === "ENOENT" ? tokenRefused() : error;
    });
    try {
      const archive = takenArchive(this.#options.state, sandboxId);
      await mkdir(join(archive, ".."), { mode: 0o700 });
      const moved = await moveUpload(join(this.#folder, used), slot.fileName, archive);
      const problem = moved ? await archiveProblem(archive, slot.sizeBytes) : "is not there";
      if (problem === undefined) return;
      await this.release(sandboxId);
      throw failedPrecondition(`the staged archive ${problem}`, {
        next: "Ask for a new token with BeginRootfsTarStaging and copy the archive to upload_path",
      });
    } finally {
      await rm(join(this.#folder, used), { recursive: true, force: true }).catch(() => {});
    }
  }

  /** Removes the archive of a sandbox that needs it no more; most never had one. */
  async release(sandboxId: string): Promise<void> {
    await discard(this.#folder, `of-${sandboxId}`).catch((error: unknown) => {
      this.#options.log.warn({ [LogField.sandboxId]: sandboxId, err: error }, describeError(error));
    });
  }

  /** Slots and archives stay: the next process takes them up. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort();
  }

  #checkRoom(workspace: string): void {
    const slots = [...this.#slots.values()];
    const inWorkspace = slots.filter((slot) => slot.workspace === workspace).length;
    if (inWorkspace < StagingLimit.slotsOfWorkspace && slots.length < StagingLimit.slots) return;
    throw resourceExhausted(`${inWorkspace} archives of this workspace and ${slots.length} in all are being staged`, {
      next: "Create the sandboxes that wait for theirs, or try again when the unused ones have expired (30 min)",
    });
  }

  /** Remembers a slot until its time is over. */
  #keep(slot: Slot): void {
    const { clock, log } = this.#options;
    this.#slots.set(slot.tokenHash, slot);
    // The wall clock may have been set back.
    const leftMs = Math.min(slot.expiresAt - clock.now(), StagingLimit.slotMs);
    const expire = async (): Promise<void> => {
      await clock.sleep(leftMs, { signal: this.#closed.signal, unref: true });
      if (this.#slots.delete(slot.tokenHash)) await discard(this.#folder, `slot-${slot.id}`);
    };
    expire().catch((error: unknown) => {
      if (!this.#closed.signal.aborted) log.warn({ err: error }, describeError(error));
    });
  }
}

function tokenRefused(): Error {
  return failedPrecondition("the staging token is unknown, expired or was used before", {
    next: "Ask for a new one with BeginRootfsTarStaging and copy the archive again",
  });
}

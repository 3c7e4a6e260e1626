import { randomFillSync } from "node:crypto";
import { closeSync, fstatSync, ftruncateSync, openSync, statfsSync, writeSync } from "node:fs";
import { dirname } from "node:path";

/**
 * Space on the disk of the state folder that is kept for ending sandboxes: what fills the disk may be one of them, and it
 * could not be stopped or deleted when that cannot be stored. Imports little: it is part of the writer's small bundle.
 */

/** Kept. A stop and a delete write some 100 KiB, most of it over what the log of writes has on the disk already. */
export const RESERVE_BYTES = 8 * 1024 * 1024;
/** Given back at once: whoever fills the disk takes of it too. */
const STEP_BYTES = 1024 * 1024;
/** Free beside it before it is taken again: it shall not be what fills the disk. */
const MARGIN_BYTES = 32 * 1024 * 1024;

export class Reserve {
  readonly #path: string;
  readonly #wanted: number;

  /** `path`: the file that holds the space; on the disk of the database. */
  constructor(path: string, wanted = RESERVE_BYTES) {
    this.#path = path;
    this.#wanted = wanted;
  }

  /** Takes what is missing while there is room for more than it. True when it is whole. */
  take(): boolean {
    try {
      return this.#open((file, held) => {
        if (held >= this.#wanted) return true;
        const { bavail, bsize } = statfsSync(dirname(this.#path));
        if (bavail * bsize < this.#wanted - held + MARGIN_BYTES) return false;
        // Random: zeroes take no space on a file system that compresses.
        const bytes = randomFillSync(Buffer.alloc(Math.min(STEP_BYTES, this.#wanted)));
        for (let at = held; at < this.#wanted; )
          at += writeSync(file, bytes, 0, Math.min(bytes.length, this.#wanted - at), at);
        return true;
      });
    } catch {
      return false;
    }
  }

  /** Gives a part back to the disk. False: nothing is left. */
  give(): boolean {
    try {
      return this.#open((file, held) => {
        if (held === 0) return false;
        ftruncateSync(file, Math.max(0, held - STEP_BYTES));
        return true;
      });
    } catch {
      return false;
    }
  }

  /** Opened each time: a descriptor fewer, and a file that somebody removed is no reserve. */
  #open<T>(use: (file: number, held: number) => T): T {
    const file = openSync(this.#path, "a+", 0o600);
    try {
      return use(file, fstatSync(file).size);
    } finally {
      closeSync(file);
    }
  }
}

import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, rename, stat, utimes } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, escapeUntrusted, systemCode } from "@openshell/base";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import { z } from "zod";
import { DriverError } from "../../driver.ts";
import { removeTree, replaceFile } from "../state.ts";
import type { ImageConfig } from "./container.ts";
import type { ArchiveLimits } from "./limits.ts";
import type { Unpack } from "./thread.ts";

/** Tells how far it is; false when nobody waits for the image any more. */
export type KeepGoing = (message: string) => Promise<boolean>;

/** An unpacked image. */
export interface StoredImage {
  /** SHA-256 of the archive. */
  readonly digest: string;
  /** Host folder without links. */
  readonly root: string;
  readonly config: ImageConfig;
}

export interface ImageStoreOptions {
  /** Existing folder without links, 0700. */
  readonly folder: string;
  readonly owners: "archive" | "own";
  readonly limits: ArchiveLimits;
  /** An image that no sandbox uses is kept for so long. Milliseconds. */
  readonly keepMs: number;
  readonly clock: Clock;
  readonly unpack: Unpack;
  /** Of this start of the machine. */
  readonly bootId: string;
  /** Writes what a file system holds in memory to its disk; rejects where that cannot be done. */
  readonly flush?: (folder: string) => Promise<void>;
  /** Digests that sandboxes use; `unknown`: it might be any. */
  readonly used: () => Promise<ReadonlySet<string> | "unknown">;
}

/** How often those who wait hear of the progress. Milliseconds. */
const REPORT_MS = 1_000;
/** Archives unpacked at once: more would only share the disk. */
const MAX_UNPACKING = 2;
/** Closing the store waits so long for removals. Milliseconds. */
const CLOSE_MS = 1_000;
/** Archives remembered for one image: the same content under several names. */
const MAX_SOURCES = 8;
/** Where flushing fails, the kernel's own write-back (30 s unless configured) is waited for. Milliseconds. */
const WRITTEN_BACK_MS = 120_000;
const MIB = 2 ** 20;
/** The environment of an image is most of its record. Bytes. */
const MAX_RECORD_BYTES = 16 * MIB;

const recordSchema = z.object({
  version: z.literal(1),
  digest: z.string().regex(/^[0-9a-f]{64}$/),
  config: z.object({ user: z.string(), env: z.array(z.string()), workingDirectory: z.string() }),
  /** Device, inode, size and times of archives with this content: they need not be read again. */
  sources: z.array(z.string()),
  /** Start of the machine in which it was unpacked, until its files are known to be on the disk: a power failure may have cost some. */
  bootId: z.string().nullable(),
});
type ImageRecord = z.infer<typeof recordSchema>;

interface Flight {
  readonly done: Promise<StoredImage>;
  readonly waiting: Set<KeepGoing>;
}

/**
 * Images by the hash of their archive, each unpacked once and shared read-only. An image appears under its name only when
 * it is complete; what a crash leaves is removed when the store is opened.
 */
export class ImageStore implements AsyncDisposable {
  readonly #options: ImageStoreOptions;
  readonly #records = new Map<string, ImageRecord>();
  /** Digests that sandboxes use and whose record cannot be read, with the reason. */
  readonly #damaged = new Map<string, string>();
  readonly #flights = new Map<string, Flight>();
  /** In use by a launch that has not recorded it yet. */
  readonly #pinned = new Map<string, number>();
  /** How often each was held: a sweep that began before such a launch has recorded its use leaves the image alone. */
  readonly #holds = new Map<string, number>();
  readonly #removals = new Set<Promise<void>>();
  readonly #closed = new AbortController();
  #unpacking = 0;
  readonly #turns: (() => void)[] = [];
  #sweeping: NodeJS.Timeout | undefined;

  constructor(options: ImageStoreOptions) {
    this.#options = options;
  }

  /** Finds what is there, removes leftovers, and what nobody uses any more. A damaged record costs no sandbox its image. */
  async open(): Promise<void> {
    const used = await this.#options.used();
    for (const name of await readdir(this.#options.folder)) {
      const read = /^[0-9a-f]{64}$/.test(name) ? this.#read(name) : undefined;
      if (typeof read === "string" && (used === "unknown" || used.has(name))) {
        this.#damaged.set(name, read);
        continue;
      }
      const record = typeof read === "string" ? undefined : read;
      const lost = record !== undefined && record.bootId !== null && record.bootId !== this.#options.bootId;
      if (record === undefined || lost) this.#discard(name);
      else {
        this.#records.set(record.digest, record);
        if (record.bootId !== null) void this.#settle(record.digest);
      }
    }
    await this.sweep();
  }

  /**
   * The image of this archive, unpacked when it is not there yet, and held until the answer is disposed of. Throws
   * `image_invalid` or `image_unavailable`.
   */
  async acquire(archive: string, keepGoing: KeepGoing): Promise<StoredImage & AsyncDisposable> {
    const key = await fingerprint(archive);
    const known = [...this.#records.values()].find(({ sources }) => sources.includes(key));
    if (known !== undefined && this.#present(known.digest)) return this.#held(known);
    const flight = this.#flights.get(key) ?? this.#start(key, archive);
    flight.waiting.add(keepGoing);
    try {
      const { digest } = await flight.done;
      return this.#held(this.#records.get(digest)!);
    } finally {
      flight.waiting.delete(keepGoing);
    }
  }

  /** An image that a sandbox was created from. Throws `image_unavailable` when it is gone. */
  get(digest: string): StoredImage {
    const record = this.#present(digest);
    const problem = this.#damaged.get(digest);
    if (record === undefined && problem !== undefined) {
      throw new DriverError("image_unavailable", `the sandbox's image cannot be used: ${problem}`, {
        next: "Restore that file, or create a sandbox from the same archive, which makes it anew",
      });
    }
    if (record === undefined) {
      throw new DriverError("image_unavailable", `the sandbox's image ${digest.slice(0, 12)} is gone`, {
        next: "Delete the sandbox and create it again from its archive",
      });
    }
    return this.#image(record);
  }

  /** Removes images that no sandbox uses and whose time is over; comes back when the next one's is. */
  async sweep(): Promise<void> {
    const { clock, folder, keepMs, used } = this.#options;
    const holds = new Map(this.#holds);
    const inUse = await used();
    if (inUse === "unknown") return;
    let next = Number.POSITIVE_INFINITY;
    for (const digest of [...this.#records.keys()]) {
      if (this.#pinned.has(digest)) continue;
      const file = join(folder, digest, "image.json");
      if (this.#present(digest) === undefined) continue;
      if (inUse.has(digest)) {
        // The time of the file says when it was last seen in use.
        await utimes(file, clock.now() / 1000, clock.now() / 1000);
        continue;
      }
      const leftMs = (await stat(file)).mtimeMs + keepMs - clock.now();
      if (leftMs > 0) next = Math.min(next, leftMs);
      else if (!this.#pinned.has(digest) && this.#holds.get(digest) === holds.get(digest)) {
        this.#records.delete(digest);
        this.#discard(digest);
      }
    }
    clearTimeout(this.#sweeping);
    if (next < Number.POSITIVE_INFINITY && !this.#closed.signal.aborted) {
      this.#sweeping = setTimeout(() => void this.sweep().catch(() => {}), Math.min(next + 1, 2 ** 31 - 1)).unref();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort(new DriverError("image_unavailable", "the gateway ends", { retryable: true }));
    clearTimeout(this.#sweeping);
    await Promise.allSettled([...this.#flights.values()].map(({ done }) => done));
    // What is not removed by then is when the store is opened next.
    const limit = new AbortController();
    const late = this.#options.clock.sleep(CLOSE_MS, { signal: limit.signal, unref: true }).catch(() => {});
    await Promise.race([Promise.all(this.#removals), late]);
    limit.abort();
  }

  #start(key: string, archive: string): Flight {
    const waiting = new Set<KeepGoing>();
    const done = this.#unpackOnce(key, archive, waiting).finally(() => this.#flights.delete(key));
    // Whoever waits hears of a failure; nobody may wait any more.
    done.catch(() => {});
    const flight = { done, waiting };
    this.#flights.set(key, flight);
    return flight;
  }

  async #unpackOnce(key: string, archive: string, waiting: ReadonlySet<KeepGoing>): Promise<StoredImage> {
    const { folder, limits, owners, unpack } = this.#options;
    const total = Number(/^\d+:\d+:(\d+)/.exec(key)![1]);
    if (total > limits.bytes) {
      throw new DriverError(
        "image_invalid",
        `${shown(archive)} has ${total} bytes, at most ${limits.bytes} are taken`,
        {
          next: "Use a smaller image",
        },
      );
    }
    let message = "waiting to unpack the image";
    const cancel = new AbortController();
    const report = setInterval(() => {
      const asked = [...waiting].map((keepGoing) => keepGoing(message).catch(() => true));
      void Promise.all(asked).then((answers) => {
        if (answers.length > 0 && !answers.includes(true)) {
          cancel.abort(new DriverError("image_unavailable", "nobody waits for the image any more"));
        }
      });
    }, REPORT_MS).unref();
    const signal = AbortSignal.any([cancel.signal, this.#closed.signal]);
    const temporary = `.tmp-${randomBytes(8).toString("hex")}`;
    const at = join(folder, temporary);
    await this.#turn();
    try {
      signal.throwIfAborted();
      await mkdir(at, { mode: 0o700 });
      const image = await unpack(
        { archive, folder: at, limits, owners },
        (bytes, of) => {
          message =
            of === "archive"
              ? `unpacking the image: ${Math.ceil(bytes / MIB)} of ${Math.ceil(total / MIB)} MiB read`
              : `unpacking the image's layers: ${Math.ceil(bytes / MIB)} MiB`;
        },
        signal,
      );
      if ((await fingerprint(archive)) !== key) {
        throw new DriverError("image_unavailable", `${shown(archive)} changed while it was read`, { retryable: true });
      }
      return await this.#keep(image.digest, image.config, key, at);
    } finally {
      clearInterval(report);
      this.#unpacking -= 1;
      this.#turns.shift()?.();
      this.#discard(temporary);
    }
  }

  /** Gives a complete image its name; one that is there already is the same. */
  async #keep(digest: string, config: ImageConfig, source: string, at: string): Promise<StoredImage> {
    const { folder } = this.#options;
    const before = this.#present(digest);
    const record: ImageRecord = {
      version: 1,
      digest,
      config: { ...config, env: [...config.env] },
      sources: [...(before?.sources ?? []), source].slice(-MAX_SOURCES),
      bootId: before === undefined ? this.#options.bootId : before.bootId,
    };
    // An image whose record alone was damaged has all of its files: it had its name.
    const there = before !== undefined || this.#damaged.has(digest);
    await replaceFile(join(there ? join(folder, digest) : at, "image.json"), record);
    if (!there) await rename(at, join(folder, digest));
    this.#damaged.delete(digest);
    this.#records.set(digest, record);
    if (before === undefined) void this.#settle(digest);
    return this.#image(record);
  }

  /** Notes that an image's files are on the disk once they are. */
  async #settle(digest: string): Promise<void> {
    const { clock, flush = flushFileSystem, folder } = this.#options;
    try {
      await flush(folder).catch(() => clock.sleep(WRITTEN_BACK_MS, { signal: this.#closed.signal, unref: true }));
      const record = this.#records.get(digest);
      if (record === undefined) return;
      const settled = { ...record, bootId: null };
      this.#records.set(digest, settled);
      await replaceFile(join(folder, digest, "image.json"), settled);
    } catch {
      // It is unpacked again after the machine's next start.
    }
  }

  #turn(): Promise<void> {
    this.#unpacking += 1;
    if (this.#unpacking <= MAX_UNPACKING) return Promise.resolve();
    return new Promise((resolve) => this.#turns.push(resolve));
  }

  #held(record: ImageRecord): StoredImage & AsyncDisposable {
    const { digest } = record;
    this.#pinned.set(digest, (this.#pinned.get(digest) ?? 0) + 1);
    this.#holds.set(digest, (this.#holds.get(digest) ?? 0) + 1);
    return {
      ...this.#image(record),
      [Symbol.asyncDispose]: async () => {
        const left = this.#pinned.get(digest)! - 1;
        if (left > 0) this.#pinned.set(digest, left);
        else this.#pinned.delete(digest);
      },
    };
  }

  /** The record of an image whose files are still there: somebody may have cleared the folder. */
  #present(digest: string): ImageRecord | undefined {
    if (!existsSync(join(this.#options.folder, digest, "image.json"))) this.#records.delete(digest);
    return this.#records.get(digest);
  }

  #image({ digest, config }: ImageRecord): StoredImage {
    return { digest, root: join(this.#options.folder, digest, "root"), config };
  }

  /** The record of an image, or why there is none. */
  #read(digest: string): ImageRecord | string {
    const path = join(this.#options.folder, digest, "image.json");
    try {
      const record = recordSchema.parse(JSON.parse(readTextFile(path, MAX_RECORD_BYTES)));
      return record.digest === digest ? record : `${path} is the record of another image`;
    } catch (error) {
      return `${path} ${error instanceof UnusableFile ? error.message : "is damaged"}`;
    }
  }

  /** Takes a name away at once; its files go meanwhile. */
  #discard(name: string): void {
    const { folder } = this.#options;
    const remove = async (): Promise<void> => {
      const trash = name.startsWith(".trash-") ? name : `.trash-${randomBytes(8).toString("hex")}`;
      try {
        if (trash !== name) await rename(join(folder, name), join(folder, trash));
        await removeTree(join(folder, trash));
      } catch {
        // It is tried again when the store is opened next.
      }
    };
    const removal = remove().finally(() => this.#removals.delete(removal));
    this.#removals.add(removal);
  }
}

function flushFileSystem(folder: string): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile("sync", ["-f", folder], (error) => (error === null ? resolve() : reject(error)));
  });
}

/** Which bytes a file holds, as far as the kernel tells without reading them. Throws `image_unavailable`. */
async function fingerprint(archive: string): Promise<string> {
  try {
    const { dev, ino, size, mtimeNs, ctimeNs } = await stat(archive, { bigint: true });
    return [dev, ino, size, mtimeNs, ctimeNs].join(":");
  } catch (error) {
    throw new DriverError("image_unavailable", `${shown(archive)} cannot be read (${systemCode(error)})`, {
      next: "Name an archive that exists",
      cause: error,
    });
  }
}

function shown(path: string): string {
  return escapeUntrusted(path, 200);
}

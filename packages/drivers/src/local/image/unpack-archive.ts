import { createHash } from "node:crypto";
import {
  closeSync,
  constants,
  createReadStream,
  fstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  renameSync,
  rmSync,
} from "node:fs";
import { join } from "node:path";
import { systemCode } from "@openshell/base";
import { DriverError } from "../../driver.ts";
import { type ImageConfig, isContainerImage, NO_CONFIG, unpackContainerImage } from "./container.ts";
import { decompressed } from "./decompress.ts";
import type { ArchiveLimits } from "./limits.ts";
import { badArchive } from "./tar.ts";
import { type Unpacked, Unpacker } from "./unpack.ts";

/** What is unpacked where. */
export interface UnpackRequest {
  readonly archive: string;
  /** Empty folder of nobody else's; `root` is made in it. */
  readonly folder: string;
  readonly limits: ArchiveLimits;
  readonly owners: "archive" | "own";
}

/** What became of it. */
export interface UnpackedImage extends Readonly<Unpacked> {
  /** SHA-256 of the archive's bytes, hexadecimal. */
  readonly digest: string;
  readonly config: ImageConfig;
}

/** How far it is: bytes of the archive that were read, or bytes of layers that were unpacked. */
export type OnUnpacked = (bytes: number, of: "archive" | "layers") => void;

/**
 * Unpacks a root file system or a saved image in one pass over its bytes.
 * Throws `image_invalid` (the archive's fault) or `image_unavailable` (the machine's).
 */
export async function unpackArchive(request: UnpackRequest, onBytes: OnUnpacked): Promise<UnpackedImage> {
  try {
    return await unpack(request, onBytes);
  } catch (error) {
    throw translated(error);
  }
}

async function unpack(request: UnpackRequest, onBytes: OnUnpacked): Promise<UnpackedImage> {
  const hash = createHash("sha256");
  let read = 0;
  const source = async function* (): AsyncIterable<Uint8Array> {
    const fd = openArchive(request.archive);
    for await (const chunk of createReadStream(request.archive, { fd, highWaterMark: 1 << 20 })) {
      read += (chunk as Buffer).length;
      if (read > request.limits.bytes)
        throw badArchive(`it has more than ${request.limits.bytes} bytes`, "Use a smaller image");
      hash.update(chunk as Buffer);
      onBytes(read, "archive");
      yield chunk as Buffer;
    }
  };
  const root = join(request.folder, "root");
  const unpacker = makeUnpacker(request, root);
  const chunks = source();
  await unpacker.archive(await decompressed(chunks), false);
  // What a compressed stream leaves unread still belongs to the archive's name.
  for await (const _ of chunks);
  const digest = hash.digest("hex");
  unpacker.finish();
  if (unpacker.result.entries === 0) throw badArchive("it holds nothing");
  if (!isContainerImage(root)) return { ...unpacker.result, digest, config: NO_CONFIG };
  const saved = join(request.folder, "layers");
  const layered = makeUnpacker(request, saved, (bytes) => onBytes(bytes, "layers"));
  const config = await unpackContainerImage(root, layered);
  layered.finish();
  rmSync(root, { recursive: true });
  renameSync(saved, root);
  return { ...layered.result, digest, config };
}

/** Opens exactly the file that was allowed: whoever may write to its folder could have put a link or a pipe there since. */
function openArchive(path: string): number {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if (fstatSync(fd).isFile() && readlinkSync(`/proc/self/fd/${fd}`) === path) return fd;
  closeSync(fd);
  throw new DriverError("image_refused", "the archive is no regular file, or was replaced while it was opened", {
    next: "Name the archive by its real path",
  });
}

function makeUnpacker(request: UnpackRequest, root: string, onBytes?: (bytes: number) => void): Unpacker {
  mkdirSync(root, { mode: 0o700 });
  const { limits, owners } = request;
  return new Unpacker({ root, limits, owners, ...(onBytes === undefined ? {} : { onBytes }) });
}

/** The archive's names and links make some system errors; others are the machine's. */
function translated(error: unknown): unknown {
  const code = systemCode(error);
  if (error instanceof DriverError || code === undefined) return error;
  if (code === "ENAMETOOLONG" || code === "EMLINK") {
    return badArchive(`a path or link in it is beyond what this machine can hold (${code})`);
  }
  const full = code === "ENOSPC" || code === "EDQUOT";
  return new DriverError(
    "image_unavailable",
    full ? "the disk is full: the image does not fit" : `the image cannot be unpacked: ${(error as Error).message}`,
    {
      next: full
        ? "Free space where the gateway keeps its state, or use a smaller image"
        : "Check that the archive can be read, and the disk on which the gateway keeps its state",
      cause: error,
    },
  );
}

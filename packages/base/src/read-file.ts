import { isUtf8 } from "node:buffer";
import { closeSync, constants, fstatSync, openSync, readSync, type Stats, statSync } from "node:fs";
import { systemCode } from "./errors.ts";

/** What a shell hands over with `<(…)` and `/dev/stdin`: an open descriptor, which may be a pipe or a terminal. */
const DESCRIPTOR = /^\/(?:dev\/(?:fd\/\d+|stdin)|proc\/self\/fd\/\d+)$/;
const BYTE_ORDER_MARK = "\ufeff";
const CHUNK_BYTES = 64 * 1024;

/** Why a file cannot be used. `message` goes on after the file's name: `is a folder`, `does not exist`. */
export class UnusableFile extends Error {
  /** Nothing is there, or something on the way is no folder. */
  readonly missing: boolean;
  readonly tooLarge: boolean;

  constructor(problem: string, options: { missing?: boolean; tooLarge?: boolean; cause?: unknown } = {}) {
    super(problem, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "UnusableFile";
    this.missing = options.missing ?? false;
    this.tooLarge = options.tooLarge ?? false;
  }

  /** By name: the bundles of the command line each have a copy of this class. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof Error && value.name === "UnusableFile";
  }
}

/**
 * The text of a file that somebody named or that an earlier run left: at most `maxBytes`, UTF-8, without its byte order mark.
 * A folder, socket, device or named pipe is refused before it is opened, so that nothing waits for a writer that never comes;
 * pipes are taken where a shell passes them as an open descriptor.
 *
 * @throws UnusableFile
 */
export function readTextFile(path: string, maxBytes: number): string {
  return decodeText(readFileBytes(path, maxBytes));
}

/** As {@link readTextFile}, without a judgement on the content. @throws UnusableFile */
export function readFileBytes(path: string, maxBytes: number): Buffer {
  const passed = DESCRIPTOR.test(path);
  let fd: number | undefined;
  try {
    refuseKind(statSync(path), passed);
    // What was put there since is not waited for either.
    fd = openSync(path, constants.O_RDONLY | constants.O_NOCTTY | (passed ? 0 : constants.O_NONBLOCK));
    const stat = fstatSync(fd);
    refuseKind(stat, passed);
    if (stat.size > maxBytes) throw tooLarge(maxBytes);
    return readAll(fd, maxBytes);
  } catch (error) {
    throw error instanceof UnusableFile ? error : translated(error);
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}

/** Text that came as bytes from a file or a pipe. @throws UnusableFile when it is not UTF-8: guessing would change it. */
export function decodeText(bytes: Uint8Array): string {
  const [first, second] = bytes;
  if ((first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff)) {
    throw new UnusableFile("is UTF-16, not UTF-8");
  }
  if (!isUtf8(bytes)) throw new UnusableFile("is not UTF-8");
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("utf8");
  if (text.includes("\0")) throw new UnusableFile("holds NUL bytes, which no text has");
  return text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text;
}

function refuseKind(stat: Stats, passed: boolean): void {
  if (stat.isFile()) return;
  if (stat.isDirectory()) throw new UnusableFile("is a folder");
  if (passed) return;
  if (stat.isFIFO()) throw new UnusableFile("is a named pipe");
  throw new UnusableFile(stat.isSocket() ? "is a socket" : "is a device");
}

function readAll(fd: number, maxBytes: number): Buffer {
  const chunks: Buffer[] = [];
  let length = 0;
  for (;;) {
    const chunk = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, maxBytes - length + 1));
    const count = readSync(fd, chunk);
    if (count === 0) return Buffer.concat(chunks);
    length += count;
    if (length > maxBytes) throw tooLarge(maxBytes);
    chunks.push(chunk.subarray(0, count));
  }
}

function tooLarge(maxBytes: number): UnusableFile {
  return new UnusableFile(`is larger than ${maxBytes} bytes`, { tooLarge: true });
}

function translated(cause: unknown): UnusableFile {
  switch (systemCode(cause)) {
    case "ENOENT":
    case "ENOTDIR":
      return new UnusableFile("does not exist", { missing: true, cause });
    case "EACCES":
    case "EPERM":
      return new UnusableFile("may not be read by this user", { cause });
    case "ELOOP":
      return new UnusableFile("is a link that leads to itself", { cause });
    case "ENAMETOOLONG":
      return new UnusableFile("has a name that is too long", { cause });
    case "ERR_INVALID_ARG_VALUE":
      return new UnusableFile("has a NUL in its name", { cause });
    default:
      return new UnusableFile(`cannot be read (${systemCode(cause) ?? "unknown error"})`, { cause });
  }
}

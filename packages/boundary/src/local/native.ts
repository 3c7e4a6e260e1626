import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { RuntimeError } from "@openshell/base";

/** The addon's functions (native/addon/addon.c). Descriptors are plain numbers; errors carry a negative `errno`. */
export interface Addon {
  /** A connected, non-blocking Unix stream socket. */
  connect(path: string): number;
  /**
   * Watches a descriptor. Not raw: takes it over and reports what arrives, with descriptors; raw: reports readiness
   * once and leaves the descriptor alone.
   */
  open(fd: number, callback: (event: number, data: unknown, fds: unknown) => void, raw: boolean): object;
  /** Bytes that the kernel took; 0 when the peer lags. */
  send(channel: object, bytes: Buffer, offset: number): number;
  /** Whether to report that the peer takes more. */
  watch(channel: object, writable: boolean): void;
  close(channel: object): void;
  getOption(fd: number, level: number, name: number, size: number): Buffer;
  setOption(fd: number, level: number, name: number, value: Buffer): void;
  setWindowSize(fd: number, rows: number, columns: number): void;
  duplicate(fd: number): number;
  /** Exclusive flock(2), not waiting: false when another open file holds it. */
  lock(fd: number): boolean;
  /** This process writes no core file, and processes of its own user cannot read or trace it. */
  harden(): void;
}

/** First argument of an addon callback. */
export const EVENT_DATA = 0;
export const EVENT_WRITABLE = 1;
export const EVENT_CLOSED = 2;
export const EVENT_READY = 3;

/** `dist/native`: below OPENSHELL_DIST when set, else beside the bundle that this module is part of. */
export function nativeFolder(env: Readonly<Record<string, string | undefined>> = process.env): string {
  return join(env["OPENSHELL_DIST"] ?? dirname(fileURLToPath(import.meta.url)), "native");
}

/** Loads the addon; Node keeps one copy a process. */
export function loadAddon(folder: string = nativeFolder()): Addon {
  const path = join(folder, "openshell.node");
  try {
    return createRequire(import.meta.url)(path) as Addon;
  } catch (cause) {
    throw new RuntimeError("native_addon_missing", `The native addon ${path} cannot be loaded`, {
      next: "Build it with native/build.sh, or set OPENSHELL_DIST to the folder that holds native/openshell.node",
      cause,
    });
  }
}

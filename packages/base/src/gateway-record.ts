import { join } from "node:path";
import type { RuntimeErrorCode } from "./catalogue/runtime.ts";
import type { GatewayPaths } from "./paths.ts";
import { isAlive, type ProcessIdentity } from "./process-identity.ts";
import { readTextFile } from "./read-file.ts";

const MAX_RECORD_BYTES = 64 * 1024;

/**
 * What a running gateway writes to `<runtime>/gateway.json` once it listens, and removes when it ends in order. A record
 * whose process is not alive is what a crash or a reboot left behind.
 */
export interface GatewayRecord extends ProcessIdentity {
  readonly name: string;
  /** Released version and identity of the built files. */
  readonly version: string;
  readonly build: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  /** Path of the users' socket. */
  readonly userSocket: string;
  /** URL of the TCP listener. */
  readonly endpoint: string;
  /** A command line started it on its own, so a command line of another build may replace it. */
  readonly autoStarted: boolean;
}

export function gatewayRecordPath(paths: Pick<GatewayPaths, "runtime">): string {
  return join(paths.runtime, "gateway.json");
}

/** Path of the users' socket of a gateway. */
export function userSocketPath(paths: Pick<GatewayPaths, "runtime">): string {
  return join(paths.runtime, "user.sock");
}

/** The record, whether its process is alive or not; undefined when there is none or it cannot be read. */
export function readGatewayRecord(paths: Pick<GatewayPaths, "runtime">): GatewayRecord | undefined {
  try {
    const record = JSON.parse(readTextFile(gatewayRecordPath(paths), MAX_RECORD_BYTES)) as GatewayRecord;
    return typeof record.pid === "number" && typeof record.startTime === "string" ? record : undefined;
  } catch {
    return undefined;
  }
}

/** The record of a gateway that runs now. */
export function runningGateway(paths: Pick<GatewayPaths, "runtime">): GatewayRecord | undefined {
  const record = readGatewayRecord(paths);
  return record !== undefined && isAlive(record) ? record : undefined;
}

/** The one line that a gateway started with `--ready-fd N` writes to that descriptor before it closes it. */
export type ReadyLine =
  | { readonly ready: true; readonly record: GatewayRecord }
  | { readonly ready: false; readonly code: RuntimeErrorCode; readonly message: string; readonly next: string };

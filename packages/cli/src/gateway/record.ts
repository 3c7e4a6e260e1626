import { existsSync } from "node:fs";
import { type GatewayRecord, readGatewayRecord, userSocketPath } from "@openshell/base/gateway-record.ts";
import type { GatewayPaths } from "@openshell/base/paths.ts";
import { ownBuild } from "../build-info.ts";

/** Why a gateway must be started before a call. */
export type StartReason =
  | { readonly kind: "not-running" }
  /** One that a command line of another build started by itself. */
  | { readonly kind: "outdated"; readonly record: GatewayRecord };

/** Whether a gateway has to be started; undefined when the one that runs will do. Two file look-ups, no process is asked. */
export function needsStart(paths: GatewayPaths, build: string = ownBuild()): StartReason | undefined {
  if (!existsSync(userSocketPath(paths))) return { kind: "not-running" };
  const record = readGatewayRecord(paths);
  // A program run from its sources has no build to compare.
  if (record === undefined || !record.autoStarted || record.build === "" || build === "") return undefined;
  return record.build === build ? undefined : { kind: "outdated", record };
}

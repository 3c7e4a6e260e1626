import type { Mode } from "../support/mode.ts";

/** The faults by name. */
export const FAULT_NAMES = [
  "kill-gateway",
  "kill-host",
  "kill-both",
  "kill-helper",
  "kill-init",
  "kill-agent",
  "full-disk",
  "descriptors-gateway",
  "descriptors-host",
  "clock-gateway",
  "clock-host",
] as const;
export type FaultName = (typeof FAULT_NAMES)[number];

/** An ordinary user cannot mount the small file system that is filled. */
export function faultsOf(mode: Mode): readonly FaultName[] {
  return mode === "root" ? FAULT_NAMES : FAULT_NAMES.filter((name) => name !== "full-disk");
}

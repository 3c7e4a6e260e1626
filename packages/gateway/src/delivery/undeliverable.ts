import { RuntimeError } from "@openshell/base";
import type { ComponentName } from "./delivery.ts";

/** Why a snapshot cannot be built before somebody has changed something, and the component that this keeps from being current. */
const CAUSES: ReadonlyMap<string, ComponentName> = new Map([
  ["global_policy_missing", "config"],
  ["secret_unreadable", "environment"],
]);

/** The component that cannot be delivered however often it is tried; undefined for what may pass by itself. */
export function undeliverable(error: unknown): ComponentName | undefined {
  return error instanceof RuntimeError ? CAUSES.get(error.code) : undefined;
}

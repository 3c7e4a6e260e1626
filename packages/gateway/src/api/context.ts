import { Code, type HandlerContext } from "@connectrpc/connect";
import { type ApiError, failedPrecondition, invalidField, notFound, readErrorDetails } from "@openshell/api/errors.ts";
import type { ComputeDriver } from "@openshell/drivers/driver.ts";
import { type Caller, callerOf } from "../auth/caller.ts";
import type { SandboxController } from "../compute/controller.ts";
import type { KeyedMutex } from "../compute/keyed-mutex.ts";
import type { LaunchFacts } from "../compute/launch.ts";
import type { SandboxFeeds } from "../compute/sandbox-feed.ts";
import type { ConfigOperations } from "../delivery/operations.ts";
import type { Scope } from "../delivery/scheduler.ts";
import type { GatewayDeps } from "../deps.ts";
import type { Observations } from "../readiness/observations.ts";
import type { ReadinessTracker } from "../readiness/tracker.ts";
import type { Attachments } from "../relay/attachments.ts";
import type { RelayBroker } from "../relay/broker.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import type { StagedArchives } from "../staging/archives.ts";
import type { SandboxRecord, WorkspaceRecord } from "../store/types.ts";

/** What the handlers of the public API work with: the gateway's parts and the live ones made at its start. */
export interface ApiDeps extends GatewayDeps {
  readonly driver: ComputeDriver;
  readonly controller: SandboxController;
  readonly sessions: SessionRegistry;
  readonly broker: RelayBroker;
  readonly attachments: Attachments;
  readonly feeds: SandboxFeeds;
  /** Tells the sessions of these sandboxes that their configuration may have changed. */
  readonly configurationChanged: (sandboxIds: Iterable<string>) => void;
  /** Tells every session that a stored change may concern. Call it after the commit. */
  readonly publish: (scope: Scope) => void;
  /** Changes of policy and settings on their way into sandboxes. */
  readonly operations: ConfigOperations;
  readonly sameRequest: KeyedMutex;
  /** What supervisors have shown of each sandbox, and what it decides. */
  readonly observations: Observations;
  readonly readiness: ReadinessTracker;
  readonly archives: StagedArchives;
  readonly launchFacts: (record: SandboxRecord) => Promise<LaunchFacts>;
}

/** The workspace a request works in. @throws ApiError NOT_FOUND. */
export async function existingWorkspace(deps: Pick<ApiDeps, "store">, name: string): Promise<WorkspaceRecord> {
  const workspace = await deps.store.workspaces.get(name);
  if (workspace === undefined) throw notFound("workspace", name);
  return workspace;
}

/** As {@link existingWorkspace}, and nothing new may be made in a workspace that is being deleted. */
export async function activeWorkspace(deps: ApiDeps, name: string): Promise<WorkspaceRecord> {
  const workspace = await existingWorkspace(deps, name);
  if (workspace.phase !== "active") {
    throw failedPrecondition(`workspace "${name}" is being deleted`, { next: "Use another workspace" });
  }
  return workspace;
}

/**
 * The sandbox of this name. The text is exactly `sandbox not found`: clients compare it. `field` holds the name in the request.
 *
 * @throws ApiError as {@link missing} says.
 */
export async function namedSandbox(
  deps: ApiDeps,
  workspace: string,
  name: string,
  field: "name" | "sandbox" | "start.sandbox" = "sandbox",
): Promise<SandboxRecord> {
  const record = await deps.store.sandboxes.byName(workspace, name);
  if (record === undefined) throw await missing(deps, "sandbox", workspace, name, field);
  return record;
}

/** Why nothing has this name: it is no name, the workspace does not exist, or the resource does not. */
export async function missing(
  deps: Pick<ApiDeps, "store">,
  kind: "sandbox" | "provider",
  workspace: string,
  name: string,
  field = "name",
): Promise<ApiError> {
  if (name === "") return invalidField(field, "must not be empty");
  const { store } = deps;
  return (await store.workspaces.get(workspace)) === undefined
    ? notFound("workspace", workspace)
    : notFound(kind, name);
}

/** Whether an error says that the resource itself does not exist, which `allow_missing` accepts; a missing workspace it never does. */
export function isMissing(error: ApiError, kind: "sandbox" | "provider"): boolean {
  return error.code === Code.NotFound && readErrorDetails(error).resource?.kind === kind;
}

export function callerFrom(context: Pick<HandlerContext, "values">): Caller {
  return callerOf(context);
}

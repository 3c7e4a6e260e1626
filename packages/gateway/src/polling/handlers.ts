import { create, equals } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import {
  type ProviderReadinessObservation,
  ProviderReadinessObservationSchema,
  ReportPolicyStatusResponseSchema,
  ReportProviderReadinessResponseSchema,
  ReportSandboxConfigurationResponseSchema,
  SandboxPhase,
} from "@openshell/api";
import { failedPrecondition, invalidField, permissionDenied, throwIfInvalid } from "@openshell/api/errors.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { toDuration } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { RuntimeError } from "@openshell/base";
import { sandboxConfigMessage } from "../api/sandbox-config.ts";
import { captureSnapshot, type Snapshot } from "../delivery/snapshot.ts";
import { OBSERVATION_TTL_MS, REPORT_INTERVAL_MS } from "../readiness/limits.ts";
import type { SessionBackend } from "../sessions/backend.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import { claimsFrom } from "../sessions/service.ts";
import type { SupervisorSession } from "../sessions/session.ts";
import type { TokenClaims, TokenTable } from "../sessions/tokens.ts";
import type { SandboxRecord } from "../store/types.ts";
import { checkObservation, environmentMessage, internalObservation } from "./messages.ts";
import { PollingReports, type ReportDeps } from "./reports.ts";

export interface PollingDeps extends ReportDeps {
  readonly tokens: TokenTable;
  readonly sessions: SessionRegistry;
  readonly backend: Pick<SessionBackend, "readiness">;
}

type PollingHandlers = Pick<
  OpenShellImpl,
  | "getSandboxConfig"
  | "getSandboxProviderEnvironment"
  | "reportPolicyStatus"
  | "reportSandboxConfiguration"
  | "reportProviderReadiness"
>;

interface Captured {
  readonly record: SandboxRecord;
  readonly snapshot: Snapshot;
}

/**
 * The public configuration RPCs for supervisors that poll. Served on the host socket alone: a call proves by its sandbox
 * token which sandbox, generation and epoch it speaks for, and is answered about that sandbox only. No user and no user's
 * role is known here. All but GetSandboxConfig need an accepted session of a polling revision as well.
 */
export function pollingHandlers(deps: PollingDeps): PollingHandlers {
  const reports = new PollingReports(deps);
  /** The last report of each session, to tell a retry from another one under the same number. */
  const reported = new WeakMap<SupervisorSession, ProviderReadinessObservation>();

  const capture = async ({
    sandboxId,
    generation,
  }: Pick<TokenClaims, "sandboxId" | "generation">): Promise<Captured> => {
    const captured = await captureSnapshot(deps, sandboxId).catch((error: unknown) => {
      throw unreadable(error);
    });
    if (captured?.record.generation !== generation) throw over();
    return captured;
  };

  /** @throws ApiError UNAUTHENTICATED, PERMISSION_DENIED for another sandbox, FAILED_PRECONDITION without a polling session. */
  const polling = (sandboxId: string, context: HandlerContext): SupervisorSession => {
    const claims = claimsFrom(deps.tokens, context);
    if (sandboxId !== claims.sandboxId) throw anotherSandbox();
    const session = deps.sessions.get(sandboxId);
    const speaking = session?.state === "accepted" || session?.state === "ready";
    if (!speaking || session.generation !== claims.generation || !session.polls) {
      throw failedPrecondition("the sandbox has no accepted session of a supervisor that polls", {
        next: "Open ConnectSupervisor with protocol revision 0 or 1 first",
      });
    }
    return session;
  };

  return {
    async getSandboxConfig(request, context) {
      const claims = claimsFrom(deps.tokens, context);
      const workspace = namedWorkspace(request.workspaceScope);
      const { record, snapshot } = await capture(claims);
      if (record.workspace !== workspace || record.name !== request.name) throw anotherSandbox();
      return sandboxConfigMessage(record, snapshot);
    },

    async getSandboxProviderEnvironment(request, context) {
      const session = polling(request.sandboxId, context);
      const { snapshot } = await capture(session);
      // While the store was read the token may have been taken back: no secret is opened for it any more.
      if (polling(request.sandboxId, context) !== session) throw over();
      try {
        return environmentMessage(snapshot.environment(), snapshot.config.policyHash, request);
      } catch (error) {
        throw unreadable(error);
      }
    },

    async reportPolicyStatus(request, context) {
      const session = polling(request.sandboxId, context);
      await reports.policyStatus(session, request);
      return create(ReportPolicyStatusResponseSchema);
    },

    async reportSandboxConfiguration(request, context) {
      const session = polling(request.sandboxId, context);
      await reports.configuration(session, request, await capture(session));
      return create(ReportSandboxConfigurationResponseSchema);
    },

    async reportProviderReadiness(request, context) {
      const session = polling(request.sandboxId, context);
      const { observation } = request;
      if (observation === undefined) throw invalidField("observation", "must be set");
      throwIfInvalid(checkObservation(observation));
      if (observation.sessionId !== session.sessionId) {
        throw failedPrecondition("the observation is of another session", {
          next: "Report under the session that is open",
        });
      }
      const answer = create(ReportProviderReadinessResponseSchema, {
        acceptedSequence: observation.sequence,
        reportInterval: toDuration(REPORT_INTERVAL_MS),
        observationTtl: toDuration(OBSERVATION_TTL_MS),
      });
      const last = reported.get(session);
      // A retry is answered, and makes nothing valid for longer.
      if (last !== undefined && equals(ProviderReadinessObservationSchema, last, observation)) return answer;
      if (last !== undefined && observation.sequence <= last.sequence) {
        throw failedPrecondition(`sequence ${last.sequence} was reported already, with other content`, {
          next: "Number each report above the one before",
        });
      }
      const record = await deps.store.sandboxes.byId(session.sandboxId);
      if (record?.status.phase !== SandboxPhase.READY) {
        throw failedPrecondition("the sandbox is not ready", { next: "Report when its workload runs" });
      }
      // While the store was read the session may have ended, or a later report have come.
      if (deps.sessions.get(session.sandboxId) !== session) throw over();
      if ((reported.get(session)?.sequence ?? 0n) < observation.sequence) {
        reported.set(session, observation);
        deps.backend.readiness(session, internalObservation(observation));
      }
      return answer;
    },
  };
}

function anotherSandbox() {
  return permissionDenied("the token is another sandbox's", { next: "Ask about the sandbox of the token" });
}

function over() {
  return failedPrecondition("the sandbox was deleted or started anew", { next: "Stop polling for this start of it" });
}

/** What the store cannot give, without what is in it. */
function unreadable(error: unknown): unknown {
  if (!(error instanceof RuntimeError)) return error;
  return failedPrecondition(error.message, { next: error.next === "" ? "Poll again" : error.next });
}

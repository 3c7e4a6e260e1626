import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import {
  CreateSandboxRequestSchema,
  DeleteSandboxRequestSchema,
  type DeleteSandboxResponse,
  DeleteSandboxResponseSchema,
  DeletionOutcome,
  ListSandboxesRequestSchema,
  SandboxPhase,
  type SandboxResponse,
  SandboxResponseSchema,
  StartSandboxRequestSchema,
  StopSandboxRequestSchema,
} from "@openshell/api";
import { failedPrecondition, permissionDenied, requestIdError, throwIfInvalid } from "@openshell/api/errors.ts";
import { parseLabelSelector } from "@openshell/api/labels.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace, resolveScope } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { LogField } from "@openshell/base";
import { DELETE_WAIT_MS, STOP_GRACE_MS, STOP_REPORT_MS } from "../compute/limits.ts";
import { nextRun } from "../compute/restart.ts";
import { isEphemeral } from "../compute/runtime-record.ts";
import { deletingPatch, mayStart, restartPending, wantsToRun, withPhase } from "../compute/status.ts";
import { DONE } from "../sessions/reader.ts";
import type { SandboxRecord } from "../store/types.ts";
import { type Admission, admitted } from "./admission.ts";
import {
  type ApiDeps,
  activeWorkspace,
  callerFrom,
  existingWorkspace,
  isMissing,
  missing,
  namedSandbox,
} from "./context.ts";
import { objectCursor, sandboxMessage } from "./convert.ts";
import { createSandbox } from "./create-sandbox.ts";
import { encodedSandbox, encodedSandboxes, encodedSandboxResponse } from "./encoded-sandbox.ts";
import { modify, storeNonce, write } from "./mutations.ts";
import { encodedPageOf } from "./pages.ts";
import { startedSoon } from "./started-soon.ts";
import { validateCreate } from "./validate-sandbox.ts";

type SandboxHandlers = Pick<
  OpenShellImpl,
  "createSandbox" | "getSandbox" | "listSandboxes" | "deleteSandbox" | "stopSandbox" | "startSandbox"
>;

export function sandboxHandlers(deps: ApiDeps): SandboxHandlers {
  const { store, clock, controller } = deps;
  const respond = (record: SandboxRecord): SandboxResponse =>
    create(SandboxResponseSchema, { sandbox: sandboxMessage(record) });
  const logWish = (record: SandboxRecord, context: Pick<HandlerContext, "values">, what: string): void =>
    deps.log.info({ [LogField.sandboxId]: record.id, [LogField.subject]: callerFrom(context).subject }, what);
  const replayById = async (receipt: Uint8Array): Promise<SandboxResponse> => {
    const record = await store.sandboxes.byId(Buffer.from(receipt).toString());
    if (record === undefined) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
    return respond(record);
  };

  return {
    async createSandbox(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const caller = callerFrom(context);
      throwIfInvalid(validateCreate(request));
      return await admitted(
        deps,
        context,
        { schema: CreateSandboxRequestSchema, request, workspace },
        replayById,
        async (admission) => {
          await activeWorkspace(deps, workspace);
          const record = await createSandbox(deps, request, workspace, caller, admission);
          void controller.request(record.id);
          // Whoever announced an attachment attaches at once, and waits there. A sandbox that goes by itself may be gone before
          // its start was seen: whoever watches it needs to begin now.
          if (request.awaitMainProcessAttachment || isEphemeral(record)) return respond(record);
          return respond(await startedSoon(deps, record, context.signal));
        },
      );
    },

    async getSandbox(request) {
      const workspace = namedWorkspace(request.workspaceScope);
      const record = await namedSandbox(deps, workspace, request.name, "name");
      const changed = await controller.volumes.asked(record);
      return encodedSandboxResponse(changed ? await namedSandbox(deps, workspace, request.name, "name") : record);
    },

    async listSandboxes(request, context) {
      const scope = resolveScope(request.workspaceScope, { all: true });
      if (scope.kind === "all" && !callerFrom(context).admin)
        throw permissionDenied("only a platform administrator may list all workspaces", { next: "Name one workspace" });
      if (scope.kind === "workspace") await existingWorkspace(deps, scope.workspace);
      const limit = pageSize(request.pageSize);
      const token = { mac: deps.keys.pageTokens, method: "ListSandboxes", schema: ListSandboxesRequestSchema, request };
      const after = await decodePageToken(token, request.pageToken, objectCursor.length);
      const rows = await store.sandboxes.list({
        ...(scope.kind === "workspace" ? { workspace: scope.workspace } : {}),
        labels: Object.fromEntries(parseLabelSelector(request.labelSelector)),
        after: after === undefined ? undefined : objectCursor.decode(after),
        limit: limit + 1,
      });
      const { encode: cursor } = objectCursor;
      const { items, nextPageToken } = await encodedPageOf({ rows, limit, token, encoded: encodedSandbox, cursor });
      return encodedSandboxes(items, nextPageToken);
    },

    async deleteSandbox(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const replay = (receipt: Uint8Array) => fromBinary(DeleteSandboxResponseSchema, receipt);
      return await admitted(
        deps,
        context,
        { schema: DeleteSandboxRequestSchema, request, workspace },
        replay,
        async (admission) => {
          const record = await store.sandboxes.byName(workspace, request.name);
          if (record !== undefined) return await deleteSandbox(deps, record, admission);
          const absence = await missing(deps, "sandbox", workspace, request.name);
          if (!request.allowMissing || !isMissing(absence, "sandbox")) throw absence;
          const absent = create(DeleteSandboxResponseSchema, { outcome: DeletionOutcome.ALREADY_ABSENT });
          await write(deps, [...admission.admit, ...admission.succeed(toBinary(DeleteSandboxResponseSchema, absent))]);
          return absent;
        },
      );
    },

    async stopSandbox(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      return await admitted(
        deps,
        context,
        { schema: StopSandboxRequestSchema, request, workspace },
        replayById,
        async (admission) => {
          const record = await namedSandbox(deps, workspace, request.name, "name");
          logWish(record, context, "stop requested");
          const changed = await modify(deps, record, (current) => {
            const { phase } = current.status;
            const also = [...admission.admit, ...admission.succeed(record.id)];
            if (phase === SandboxPhase.STOPPED || phase === SandboxPhase.STOPPING)
              return also.length === 0 ? undefined : { patch: {}, also };
            if (!wantsToRun(phase)) throw wrongPhase(current, "stopped");
            const message = "the sandbox is being stopped";
            return {
              patch: { status: withPhase(current.status, SandboxPhase.STOPPING, "Stopping", message, clock.now()) },
              also,
            };
          });
          if (changed.status.phase === SandboxPhase.STOPPED) return respond(changed);
          await within(deps, controller.request(record.id), STOP_GRACE_MS + 2 * STOP_REPORT_MS);
          return respond((await store.sandboxes.byId(record.id)) ?? changed);
        },
      );
    },

    async startSandbox(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      return await admitted(
        deps,
        context,
        { schema: StartSandboxRequestSchema, request, workspace },
        replayById,
        async (admission) => {
          const record = await namedSandbox(deps, workspace, request.name, "name");
          logWish(record, context, "start requested");
          const changed = await modify(deps, record, (current) => {
            const also = [...admission.admit, ...admission.succeed(record.id)];
            // A start that is asked for does not wait for the time of the restart policy.
            const waiting = restartPending(current.status);
            if (wantsToRun(current.status.phase) && !waiting)
              return also.length === 0 ? undefined : { patch: {}, also };
            if (!waiting && !mayStart(current.status)) throw wrongPhase(current, "started");
            return {
              patch: nextRun(current, "asked", clock.now()),
              also: [...also, storeNonce(deps, current.workspace, current.id, current.generation + 1n)],
            };
          });
          void controller.request(record.id);
          return respond(changed);
        },
      );
    },
  };
}

async function deleteSandbox(
  deps: ApiDeps,
  record: SandboxRecord,
  admission: Admission,
): Promise<DeleteSandboxResponse> {
  const { store, clock, controller } = deps;
  let first = true;
  await modify(deps, record, (current) => {
    if (current.status.phase === SandboxPhase.DELETING && admission.admit.length === 0) return undefined;
    first = current.status.phase !== SandboxPhase.DELETING;
    const cancelled = store.operations.finishAll(current.id, "cancelled", clock.now());
    return { patch: deletingPatch(current, clock.now()), also: [...admission.admit, cancelled] };
  });
  if (first)
    deps.log.info({ [LogField.sandboxId]: record.id, [LogField.sandboxName]: record.name }, "delete requested");
  await within(deps, controller.request(record.id), DELETE_WAIT_MS);
  const gone = (await store.sandboxes.byId(record.id)) === undefined;
  const outcome = gone ? DeletionOutcome.COMPLETED : DeletionOutcome.ACCEPTED;
  const response = create(DeleteSandboxResponseSchema, { outcome, sandboxId: record.id });
  const done = admission.succeed(toBinary(DeleteSandboxResponseSchema, response));
  if (done.length > 0) await store.write(...done);
  return response;
}

async function within(deps: ApiDeps, work: Promise<void>, limitMs: number): Promise<void> {
  const timer = new AbortController();
  const limit = deps.clock.sleep(limitMs, { signal: timer.signal, unref: true }).catch(() => {});
  await Promise.race([work, limit]);
  timer.abort(DONE);
}

function wrongPhase(record: SandboxRecord, what: string) {
  const phase = SandboxPhase[record.status.phase];
  const reason = record.status.conditions.find((condition) => condition.type === "Ready")?.reason;
  return failedPrecondition(
    `sandbox "${record.name}" cannot be ${what} in phase ${phase}${reason ? ` (${reason})` : ""}`,
    {
      next:
        record.status.phase === SandboxPhase.ERROR
          ? "Delete it and create it again"
          : "Look at its phase, then try again",
    },
  );
}

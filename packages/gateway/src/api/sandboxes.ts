import { randomBytes, randomInt, randomUUID } from "node:crypto";
import { clone, create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  type CreateSandboxRequest,
  CreateSandboxRequestSchema,
  DeleteSandboxRequestSchema,
  type DeleteSandboxResponse,
  DeleteSandboxResponseSchema,
  DeletionOutcome,
  ListSandboxesRequestSchema,
  ListSandboxesResponseSchema,
  SandboxPhase,
  type SandboxResponse,
  SandboxResponseSchema,
  type SandboxSpec,
  SandboxSpecSchema,
  SandboxStatusSchema,
} from "@openshell/api";
import {
  alreadyExists,
  failedPrecondition,
  notFound,
  permissionDenied,
  requestIdError,
  throwIfInvalid,
  unimplemented,
} from "@openshell/api/errors.ts";
import { parseLabelSelector } from "@openshell/api/labels.ts";
import { decodePageToken, encodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace, resolveScope } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { LogField } from "@openshell/base";
import type { Caller } from "../auth/caller.ts";
import { deletingPatch } from "../compute/controller.ts";
import { NONCE_BYTES, NONCE_SECRET, nonceContext, sandboxIntent } from "../compute/launch.ts";
import { DELETE_WAIT_MS, STOP_GRACE_MS, STOP_REPORT_MS } from "../compute/limits.ts";
import { encodeRuntimeFacts, runtimeFacts } from "../compute/runtime-record.ts";
import { mayStart, startingStatus, wantsToRun, withPhase } from "../compute/status.ts";
import { checkedPolicy } from "../policies/check.ts";
import { policyHash } from "../policies/rules.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { NewSandbox, SandboxChange, SandboxRecord } from "../store/types.ts";
import { type Admission, admissionError, openAdmission } from "./admission.ts";
import { type ApiDeps, activeWorkspace, callerFrom, existingWorkspace, namedSandbox } from "./context.ts";
import { objectCursor, sandboxMessage } from "./convert.ts";
import { driverError } from "./driver-errors.ts";
import { checkAttachable } from "./sandbox-providers.ts";
import { validateCreate } from "./validate-sandbox.ts";

/** The main process when nobody names one. */
const DEFAULT_COMMAND: readonly string[] = ["/bin/bash", "-l"];
/** Attempts to find a free generated name. */
const NAME_ATTEMPTS = 5;

type SandboxHandlers = Pick<
  OpenShellImpl,
  "createSandbox" | "getSandbox" | "listSandboxes" | "deleteSandbox" | "stopSandbox" | "startSandbox"
>;

export function sandboxHandlers(deps: ApiDeps): SandboxHandlers {
  const { store, clock, controller } = deps;
  const respond = (record: SandboxRecord): SandboxResponse =>
    create(SandboxResponseSchema, { sandbox: sandboxMessage(record) });
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
      await activeWorkspace(deps, workspace);
      const opened = await openAdmission(
        deps,
        {
          method: "CreateSandbox",
          schema: CreateSandboxRequestSchema,
          request,
          requestId: request.requestId,
          caller,
          workspace,
        },
        replayById,
        context,
      );
      if (opened.replayed !== undefined) return opened.replayed;
      const record = await createSandbox(deps, request, workspace, caller, opened.admission);
      void controller.request(record.id);
      return respond(record);
    },

    async getSandbox(request) {
      const workspace = namedWorkspace(request.workspaceScope);
      return respond(await namedSandbox(deps, workspace, request.name));
    },

    async listSandboxes(request, context) {
      const scope = resolveScope(request.workspaceScope, { all: true });
      if (scope.kind === "all" && !callerFrom(context).admin)
        throw permissionDenied("only a platform administrator may list all workspaces");
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
      const page = rows.slice(0, limit);
      const last = page.at(-1);
      const nextPageToken =
        rows.length > limit && last !== undefined ? await encodePageToken(token, objectCursor.encode(last)) : "";
      return create(ListSandboxesResponseSchema, { sandboxes: page.map(sandboxMessage), nextPageToken });
    },

    async deleteSandbox(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const caller = callerFrom(context);
      await existingWorkspace(deps, workspace);
      const opened = await openAdmission(
        deps,
        {
          method: "DeleteSandbox",
          schema: DeleteSandboxRequestSchema,
          request,
          requestId: request.requestId,
          caller,
          workspace,
        },
        async (receipt) => fromBinary(DeleteSandboxResponseSchema, receipt),
        context,
      );
      if (opened.replayed !== undefined) return opened.replayed;
      const { admission } = opened;
      const record = await store.sandboxes.byName(workspace, request.name);
      if (record === undefined) {
        if (!request.allowMissing) throw notFound("sandbox", request.name);
        const absent = create(DeleteSandboxResponseSchema, { outcome: DeletionOutcome.ALREADY_ABSENT });
        await write(deps, [...admission.admit, ...admission.succeed(toBinary(DeleteSandboxResponseSchema, absent))]);
        return absent;
      }
      return await deleteSandbox(deps, record, admission);
    },

    async stopSandbox(request, context) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.name);
      deps.log.info(
        { [LogField.sandboxId]: record.id, [LogField.subject]: callerFrom(context).subject },
        "stop requested",
      );
      const changed = await modify(deps, record, (current) => {
        const { phase } = current.status;
        if (phase === SandboxPhase.STOPPED || phase === SandboxPhase.STOPPING) return undefined;
        if (!wantsToRun(phase)) throw wrongPhase(current, "stopped");
        const status = withPhase(
          current.status,
          SandboxPhase.STOPPING,
          "Stopping",
          "the sandbox is being stopped",
          clock.now(),
        );
        return { patch: { status } };
      });
      if (changed.status.phase !== SandboxPhase.STOPPED)
        await within(deps, controller.request(record.id), STOP_GRACE_MS + 2 * STOP_REPORT_MS);
      return respond((await store.sandboxes.byId(record.id)) ?? changed);
    },

    async startSandbox(request, context) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.name);
      deps.log.info(
        { [LogField.sandboxId]: record.id, [LogField.subject]: callerFrom(context).subject },
        "start requested",
      );
      const changed = await modify(deps, record, (current) => {
        if (wantsToRun(current.status.phase)) return undefined;
        if (!mayStart(current.status)) throw wrongPhase(current, "started");
        const generation = current.generation + 1n;
        const facts = { ...runtimeFacts(current), awaitAttachment: false };
        return {
          patch: {
            generation,
            status: startingStatus(current.status, SandboxPhase.STARTING, clock.now()),
            runtimeRecord: encodeRuntimeFacts(facts),
          },
          also: [storeNonce(deps, current.workspace, current.id, generation)],
        };
      });
      void controller.request(record.id);
      return respond(changed);
    },
  };
}

/** Stores the sandbox as PROVISIONING with everything its launch needs; the controller does the rest. */
async function createSandbox(
  deps: ApiDeps,
  request: CreateSandboxRequest,
  workspace: string,
  caller: Caller,
  admission: Admission,
): Promise<SandboxRecord> {
  const { store, clock } = deps;
  refuseUnsupported(request);
  const spec = clone(SandboxSpecSchema, request.spec!);
  const defaultCommand = spec.command.length === 0;
  if (defaultCommand) {
    spec.command = [...DEFAULT_COMMAND];
    spec.tty = true;
  }
  spec.providers = [...new Set(spec.providers)];
  spec.providerAttachmentEpoch = randomUUID();
  await checkAttachable(deps, workspace, spec.providers);
  if (spec.policy !== undefined) spec.policy = checkedPolicy(spec.policy, spec.providers, "spec.policy");
  for (let attempt = 1; ; attempt++) {
    const record = newRecord(deps, request, spec, { workspace, caller, defaultCommand });
    await validateWithDriver(deps, record);
    const commands: Command<unknown>[] = [
      ...admission.admit,
      store.sandboxes.create(record),
      storeNonce(deps, workspace, record.id, record.generation),
    ];
    if (deps.driver.capabilities.identityMode === "root") commands.push(store.idBlocks.allot(record.id));
    if (spec.policy !== undefined) {
      const { policy } = spec;
      const revision = { scope: record.id, hash: policyHash(policy), policy, createdAt: clock.now(), provenance: {} };
      commands.push(store.policies.append({ ...revision, status: "pending", expectedLatest: 0 }));
    }
    commands.push(...admission.succeed(Buffer.from(record.id)));
    try {
      await write(deps, commands);
    } catch (error) {
      if (!isStoreError(error, "store_already_exists") || error.subject !== "sandbox") throw error;
      if (request.name !== "") throw alreadyExists("sandbox", request.name);
      if (attempt >= NAME_ATTEMPTS) throw error;
      continue;
    }
    const facts = {
      [LogField.sandboxId]: record.id,
      [LogField.sandboxName]: record.name,
      [LogField.workspace]: workspace,
    };
    deps.log.info({ ...facts, [LogField.subject]: caller.subject }, "sandbox created");
    return { ...record, resourceVersion: 1n, deletionAt: undefined };
  }
}

function refuseUnsupported(request: CreateSandboxRequest): void {
  if (request.workloadTemplate !== "") throw notFound("sandbox template", request.workloadTemplate);
  if (request.serviceExposures.length > 0) {
    throw unimplemented("service exposures are not built yet in this gateway", {
      next: "Create the sandbox without service_exposures",
    });
  }
}

function newRecord(
  deps: ApiDeps,
  request: CreateSandboxRequest,
  spec: SandboxSpec,
  facts: { readonly workspace: string; readonly caller: Caller; readonly defaultCommand: boolean },
): NewSandbox {
  const now = deps.clock.now();
  const owner = facts.caller.ownerOfMachineFiles;
  return {
    id: randomUUID(),
    name: request.name === "" ? generatedName() : request.name,
    workspace: facts.workspace,
    labels: { ...request.labels },
    annotations: { ...request.annotations },
    createdAt: now,
    spec,
    status: startingStatus(create(SandboxStatusSchema), SandboxPhase.PROVISIONING, now),
    hostKeyFingerprint: "",
    workloadTemplate: undefined,
    generation: 1n,
    driver: deps.driver.name,
    driverRecord: null,
    runtimeRecord: encodeRuntimeFacts({
      caller: owner ? { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 } : undefined,
      defaultCommand: facts.defaultCommand,
      awaitAttachment: request.awaitMainProcessAttachment,
      launchedGeneration: 0n,
      bootId: "",
    }),
  };
}

/** Everything that the driver would refuse is refused before anything is stored. */
async function validateWithDriver(deps: ApiDeps, record: NewSandbox): Promise<void> {
  const stored: SandboxRecord = { ...record, resourceVersion: 1n, deletionAt: undefined };
  const idBlock = deps.driver.capabilities.identityMode === "root" ? 0 : undefined;
  const launch = { ...(await deps.launchFacts(stored)), nonce: new Uint8Array(NONCE_BYTES), idBlock };
  await deps.driver.validate(sandboxIntent(stored, launch)).catch((error: unknown) => {
    throw driverError(error);
  });
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
    return { patch: deletingPatch(current, clock.now()), also: admission.admit };
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

/** A conditional change on behalf of a caller; watchers are told. */
async function modify(
  deps: ApiDeps,
  record: SandboxRecord,
  change: (current: SandboxRecord) => SandboxChange | undefined,
): Promise<SandboxRecord> {
  try {
    const changed = await deps.store.modifySandbox(record.id, change);
    deps.feeds.of(record.id).changed();
    deps.sessions.notify(record.id);
    return changed;
  } catch (error) {
    if (isStoreError(error, "store_not_found")) throw notFound("sandbox", record.name);
    throw admissionError(error) ?? error;
  }
}

async function write(deps: ApiDeps, commands: readonly Command<unknown>[]): Promise<void> {
  if (commands.length === 0) return;
  try {
    await deps.store.write(...commands);
  } catch (error) {
    throw admissionError(error) ?? error;
  }
}

/** A fresh nonce for one generation, sealed. */
function storeNonce(deps: ApiDeps, workspace: string, sandboxId: string, generation: bigint): Command<void> {
  const sealed = deps.vault.seal(nonceContext(workspace, sandboxId, generation), randomBytes(NONCE_BYTES));
  return deps.store.secrets.put(sandboxId, NONCE_SECRET, generation, sealed);
}

async function within(deps: ApiDeps, work: Promise<void>, limitMs: number): Promise<void> {
  const timer = new AbortController();
  const limit = deps.clock.sleep(limitMs, { signal: timer.signal, unref: true }).catch(() => {});
  await Promise.race([work, limit]);
  timer.abort();
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

const LETTERS = "bcdfghjkmnpqrstvwxz23456789";

function generatedName(): string {
  return `sandbox-${Array.from({ length: 8 }, () => LETTERS[randomInt(LETTERS.length)]).join("")}`;
}

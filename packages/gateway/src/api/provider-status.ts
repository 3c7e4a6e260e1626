import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import {
  GetSandboxProviderStatusResponseSchema,
  ProviderMutationKind,
  type ProviderReadinessObservation,
  ProviderReadinessObservationSchema,
  ProviderReadinessStatusSchema,
} from "@openshell/api";
import { ApiError, invalidField } from "@openshell/api/errors.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { toTimestamp } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { revisionNumber } from "../delivery/snapshot.ts";
import { type Readiness, sameIdentity } from "../readiness/evaluate.ts";
import type { Evidence } from "../readiness/observations.ts";
import { ending, operationMessage } from "../readiness/operations.ts";
import { newReceipt, operationOf } from "../readiness/receipts.ts";
import type { OperationRecord, SandboxRecord } from "../store/types.ts";
import { type ApiDeps, missing, namedSandbox } from "./context.ts";

/** Observations of one sandbox that are looked through for one that can be used again. */
const RECENT_OPERATIONS = 16;

export function providerStatusHandlers(deps: ApiDeps): Pick<OpenShellImpl, "getSandboxProviderStatus"> {
  const { store, clock, readiness, observations } = deps;
  return {
    async getSandboxProviderStatus(request) {
      const workspace = namedWorkspace(request.workspaceScope);
      const record = await namedSandbox(deps, workspace, request.sandbox);
      if (request.provider === "") throw invalidField("provider", "must not be empty");
      const operation =
        request.receiptId === ""
          ? await observed(deps, record, request.provider)
          : await recorded(deps, record, request.provider, request.receiptId);
      const receipt = operation.receipt!;
      const status = await readiness.status(record, receipt);
      const finished = ending(store, operation, status, clock.now());
      if (finished !== undefined) await store.write(finished);
      const latest =
        finished === undefined ? operation : ((await store.operations.get(receipt.receiptId)) ?? operation);
      const evidence = observations.of(record.id);
      return create(GetSandboxProviderStatusResponseSchema, {
        status: create(ProviderReadinessStatusSchema, {
          receipt,
          state: status.state,
          reason: status.reason,
          ...shown(evidence, status),
          evaluatedTime: toTimestamp(clock.now()),
          operation: operationMessage(latest),
        }),
      });
    },
  };
}

/** The change that a receipt names, of this sandbox and provider; anything else does not exist for the caller. */
async function recorded(
  { store }: ApiDeps,
  record: SandboxRecord,
  provider: string,
  receiptId: string,
): Promise<OperationRecord> {
  const operation = await store.operations.get(receiptId);
  if (operation?.sandboxId !== record.id || operation.receipt?.provider !== provider)
    throw new ApiError(Code.NotFound, "provider operation not found", {
      next: "Leave receipt_id empty to ask for the current state",
    });
  return operation;
}

/** The current wish as an operation of its own; asked again for the same wish it is the same one. */
async function observed(deps: ApiDeps, record: SandboxRecord, name: string): Promise<OperationRecord> {
  const { store, clock, readiness } = deps;
  if (!record.spec.providers.includes(name) && (await store.providers.byName(record.workspace, name)) === undefined)
    throw await missing(deps, "provider", record.workspace, name, "provider");
  const { desired } = await readiness.wanted(record, name);
  const recent = await store.operations.list(record.id, { limit: RECENT_OPERATIONS });
  const known = recent.find(
    ({ receipt }) =>
      receipt?.kind === ProviderMutationKind.OBSERVE &&
      receipt.provider === name &&
      receipt.desired !== undefined &&
      sameIdentity(receipt.desired, desired),
  );
  if (known !== undefined) return known;
  const kind = ProviderMutationKind.OBSERVE;
  const facts = { kind, provider: name, workspace: record.workspace, mutationId: randomUUID(), desired };
  const receipt = newReceipt({ ...facts, at: clock.now() });
  await store.write(store.operations.record([operationOf(receipt, record.id)], clock.now()));
  return (await store.operations.get(receipt.receiptId))!;
}

function shown(evidence: Evidence | undefined, { reason }: Readiness) {
  if (evidence === undefined) return {};
  const { observation } = evidence;
  const observed: ProviderReadinessObservation = create(ProviderReadinessObservationSchema, {
    sessionId: observation.sessionId,
    sequence: observation.sequence,
    attachmentEpoch: observation.attachmentEpoch,
    providerEnvRevision: revisionNumber(observation.providerRevision),
    configRevision: revisionNumber(observation.configRevision),
    policyHash: observation.policyHash,
    credentialsInstalled: observation.credentialsInstalled,
    policyActive: observation.policyActive,
    launchEnvironmentInstalled: observation.launchEnvironmentInstalled,
    processInstanceId: observation.processInstanceId,
    reason,
  });
  return { observed, networkInstanceId: evidence.instanceId, observedTime: toTimestamp(evidence.observedAt) };
}

import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import {
  AttachSandboxProviderRequestSchema,
  AttachSandboxProviderResponseSchema,
  DetachSandboxProviderRequestSchema,
  DetachSandboxProviderResponseSchema,
  ProviderMutationKind,
  type ProviderMutationReceipt,
  type SandboxSpec,
} from "@openshell/api";
import { failedPrecondition, invalidField, notFound, requestIdError, versionConflict } from "@openshell/api/errors.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { LogField } from "@openshell/base";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { buildSnapshot } from "../delivery/snapshot.ts";
import { ownPolicy } from "../policies/effective.ts";
import { bindings } from "../providers/environment.ts";
import { ATTACH_ATTEMPTS, MAX_ATTACHED_PROVIDERS } from "../readiness/limits.ts";
import { desiredIdentity, newReceipt, operationOf } from "../readiness/receipts.ts";
import { isStoreError } from "../store/errors.ts";
import type { ProviderRecord, SandboxRecord } from "../store/types.ts";
import { type Admission, admitted } from "./admission.ts";
import { type ApiDeps, callerFrom, namedSandbox } from "./context.ts";
import { sandboxMessage } from "./convert.ts";
import { write } from "./mutations.ts";
import { checkAttachable } from "./sandbox-providers.ts";

/** What both requests say. */
interface Change {
  readonly sandbox: string;
  readonly provider: string;
  readonly expectedResourceVersion: bigint;
}

interface Changed {
  readonly record: SandboxRecord;
  readonly changed: boolean;
  readonly receipt: ProviderMutationReceipt;
}

type Handlers = Pick<OpenShellImpl, "attachSandboxProvider" | "detachSandboxProvider">;

/** The set of providers of a sandbox, changed while it runs or not. What is in force follows; the receipt tells how far it is. */
export function attachProviderHandlers(deps: ApiDeps): Handlers {
  const { store } = deps;
  const writes = new KeyedMutex(deps.clock, "sandbox");

  const replay = async (bytes: Uint8Array): Promise<Changed> => {
    const { sandboxId, changed, receiptId } = JSON.parse(Buffer.from(bytes).toString());
    const [record, operation] = await Promise.all([store.sandboxes.byId(sandboxId), store.operations.get(receiptId)]);
    if (record === undefined || operation?.receipt === undefined) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
    return { record, changed, receipt: operation.receipt };
  };

  async function change(
    context: HandlerContext,
    workspace: string,
    kind: ProviderMutationKind.ATTACH | ProviderMutationKind.DETACH,
    request: Change,
    admission: Admission,
  ): Promise<Changed> {
    const named = await namedSandbox(deps, workspace, request.sandbox);
    if (request.provider === "") throw invalidField("provider", "must not be empty");
    const result = await writes.run(named.id, named.name, () => storeChange(deps, named, kind, request, admission));
    if (result.changed) {
      const what = kind === ProviderMutationKind.ATTACH ? "provider attached" : "provider detached";
      const { subject } = callerFrom(context);
      const fields = { [LogField.sandboxId]: named.id, [LogField.provider]: request.provider };
      deps.log.info({ ...fields, [LogField.subject]: subject }, what);
      const feed = deps.feeds.of(named.id);
      feed.changed();
      const message = `provider ${request.provider} is ${kind === ProviderMutationKind.ATTACH ? "attached" : "detached"}`;
      feed.addEvent({ type: "Normal", reason: "ProvidersChanged", message }, deps.clock.now());
    }
    // Also when nothing changed: whoever repeats a change wants it in force.
    deps.configurationChanged([named.id]);
    return result;
  }

  return {
    async attachSandboxProvider(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const options = { schema: AttachSandboxProviderRequestSchema, request, workspace };
      const kind = ProviderMutationKind.ATTACH;
      const { record, changed, receipt } = await admitted(deps, context, options, replay, (admission) =>
        change(context, workspace, kind, request, admission),
      );
      return create(AttachSandboxProviderResponseSchema, {
        sandbox: sandboxMessage(record),
        attached: changed,
        receipt,
      });
    },

    async detachSandboxProvider(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const options = { schema: DetachSandboxProviderRequestSchema, request, workspace };
      const kind = ProviderMutationKind.DETACH;
      const { record, changed, receipt } = await admitted(deps, context, options, replay, (admission) =>
        change(context, workspace, kind, request, admission),
      );
      return create(DetachSandboxProviderResponseSchema, {
        sandbox: sandboxMessage(record),
        detached: changed,
        receipt,
      });
    },
  };
}

/** The new set, its epoch, the receipt and the answer to a repetition, in one transaction. */
async function storeChange(
  deps: ApiDeps,
  named: SandboxRecord,
  kind: ProviderMutationKind.ATTACH | ProviderMutationKind.DETACH,
  request: Change,
  admission: Admission,
): Promise<Changed> {
  const { store, clock } = deps;
  const attach = kind === ProviderMutationKind.ATTACH;
  const { provider: name, expectedResourceVersion: expected } = request;
  for (let attempt = 1; ; attempt++) {
    const current = await store.sandboxes.byId(named.id);
    if (current === undefined) throw notFound("sandbox", named.name);
    if (current.deletionAt !== undefined)
      throw failedPrecondition(`sandbox "${named.name}" is being deleted`, { next: "Use another sandbox" });
    if (expected !== 0n && expected !== current.resourceVersion)
      throw versionConflict("sandbox", named.name, current.resourceVersion);
    const { providers } = current.spec;
    const changed = providers.includes(name) !== attach;
    const wanted = attach ? [...providers, ...(changed ? [name] : [])] : providers.filter((other) => other !== name);
    const relied = attach && changed ? await checkAttach(deps, current, wanted) : [];
    if (!attach && changed) await checkDetach(deps, current, name);
    const spec: SandboxSpec = changed
      ? { ...current.spec, providers: wanted, providerAttachmentEpoch: randomUUID() }
      : current.spec;
    const record = { ...current, spec };
    const provider = attach ? await store.providers.byName(current.workspace, name) : undefined;
    const desired = desiredIdentity(record, await buildSnapshot(deps, record), provider);
    const facts = { kind, provider: name, workspace: current.workspace, mutationId: randomUUID(), desired };
    const receipt = newReceipt({ ...facts, at: clock.now() });
    const answer = JSON.stringify({ sandboxId: current.id, changed, receiptId: receipt.receiptId });
    try {
      await write(deps, [
        ...admission.admit,
        store.providers.unchanged(relied),
        ...(changed ? [store.sandboxes.update(current.id, current.resourceVersion, { spec })] : []),
        store.operations.record([operationOf(receipt, current.id)], clock.now()),
        ...admission.succeed(answer),
      ]);
    } catch (error) {
      if (!isStoreError(error, "store_conflict") || attempt >= ATTACH_ATTEMPTS) throw error;
      continue;
    }
    return { record: (await store.sandboxes.byId(current.id)) ?? record, changed, receipt };
  }
}

async function checkAttach(
  deps: ApiDeps,
  record: SandboxRecord,
  wanted: readonly string[],
): Promise<readonly ProviderRecord[]> {
  if (wanted.length > MAX_ATTACHED_PROVIDERS) {
    throw failedPrecondition(`a sandbox has at most ${MAX_ATTACHED_PROVIDERS} providers`, {
      next: "Detach one that is no longer used",
    });
  }
  return await checkAttachable(deps, record.workspace, wanted);
}

/** A policy that gives a credential to an endpoint needs it. */
async function checkDetach(deps: ApiDeps, record: SandboxRecord, name: string): Promise<void> {
  const { policy, version } = await ownPolicy(deps.store, record.id);
  const [endpoint] = bindings(policy).get(name) ?? [];
  if (endpoint === undefined) return;
  throw failedPrecondition(
    `policy version ${version} of sandbox "${record.name}" gives provider "${name}" to ${endpoint.host}:${endpoint.port}`,
    { next: "Set a policy without that credential_binding first" },
  );
}

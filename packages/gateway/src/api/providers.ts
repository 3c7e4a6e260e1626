import { randomUUID } from "node:crypto";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import {
  CreateProviderRequestSchema,
  DeleteProviderRequestSchema,
  DeleteProviderResponseSchema,
  DeletionOutcome,
  ListProvidersRequestSchema,
  ListProvidersResponseSchema,
  ProviderMutationKind,
  type ProviderMutationReceipt,
  type ProviderResponse,
  ProviderResponseSchema,
  ProviderSchema,
  UpdateProviderRequestSchema,
} from "@openshell/api";
import {
  alreadyExists,
  failedPrecondition,
  invalidField,
  permissionDenied,
  requestIdError,
  throwIfInvalid,
  versionConflict,
} from "@openshell/api/errors.ts";
import { parseLabelSelector } from "@openshell/api/labels.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace, resolveScope } from "@openshell/api/selectors.ts";
import { readTimestamp } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { Violations } from "@openshell/api/violations.ts";
import { LogField } from "@openshell/base";
import { Secret } from "../auth/secret.ts";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { buildSnapshot } from "../delivery/snapshot.ts";
import { validateProvider } from "../providers/validate.ts";
import { type CredentialChange, storeAfter } from "../readiness/preview.ts";
import { desiredIdentity, newReceipt, operationOf } from "../readiness/receipts.ts";
import { sealCredential } from "../store/credentials.ts";
import { isStoreError } from "../store/errors.ts";
import type { ProviderRecord, SandboxRecord } from "../store/types.ts";
import { admitted } from "./admission.ts";
import { type ApiDeps, activeWorkspace, callerFrom, existingWorkspace, isMissing, missing } from "./context.ts";
import { objectCursor, providerMessage } from "./convert.ts";
import { write } from "./mutations.ts";
import { pageOf } from "./pages.ts";
import { checkConflicts, checkExpirations, checkFixed, mergedChange } from "./update-provider.ts";

/** Attempts when somebody else changes what the change depends on. */
const CHANGE_ATTEMPTS = 5;

type ProviderHandlers = Pick<
  OpenShellImpl,
  "createProvider" | "getProvider" | "listProviders" | "updateProvider" | "deleteProvider"
>;

export function providerHandlers(deps: ApiDeps): ProviderHandlers {
  const { store, clock, vault } = deps;
  const writes = new KeyedMutex(clock, "provider");
  const logChange = (context: Pick<HandlerContext, "values">, workspace: string, name: string, what: string): void => {
    const { subject } = callerFrom(context);
    deps.log.info({ [LogField.provider]: name, [LogField.workspace]: workspace, [LogField.subject]: subject }, what);
  };
  const replay = async (receipt: Uint8Array): Promise<ProviderResponse> => {
    const { id, version, mutationId = "", receiptIds = [] } = JSON.parse(Buffer.from(receipt).toString());
    const record = await store.providers.byId(id);
    if (record?.resourceVersion !== BigInt(version)) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
    const operations = await Promise.all((receiptIds as string[]).map((one) => store.operations.get(one)));
    // A sandbox that was deleted since has no operations any more.
    const targetReceipts = operations.flatMap((operation) => operation?.receipt ?? []);
    return create(ProviderResponseSchema, { provider: providerMessage(record), mutationId, targetReceipts });
  };

  return {
    async createProvider(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const { provider } = request;
      if (provider === undefined) throw invalidField("provider", "is required");
      const found = new Violations();
      validateProvider(provider, false, workspace, found);
      found.require(
        Object.keys(provider.credentials).length > 0,
        "provider.credentials",
        "must have at least one entry",
      );
      const own = provider.profileWorkspace === "" || provider.profileWorkspace === workspace;
      found.require(own, "provider.profile_workspace", "must be empty or the provider's own workspace");
      throwIfInvalid(found);
      return await admitted(
        deps,
        context,
        { schema: CreateProviderRequestSchema, request, workspace },
        replay,
        async (admission) => {
          await activeWorkspace(deps, workspace);
          const id = randomUUID();
          const name = provider.metadata!.name;
          const record = {
            id,
            name,
            workspace,
            labels: { ...provider.metadata!.labels },
            annotations: { ...provider.metadata!.annotations },
            createdAt: clock.now(),
            type: provider.type.toLowerCase(),
            config: { ...provider.config },
            profileWorkspace: provider.profileWorkspace,
          };
          const sealed = Object.entries(provider.credentials).map(([key, value]) => {
            const field = `provider.credential_expiration_times[${key}]`;
            const expiresAt = readTimestamp(provider.credentialExpirationTimes[key], field);
            const owner = { workspace, providerId: id };
            return sealCredential(vault, owner, { key, value: new Secret(value), version: 1n, expiresAt });
          });
          const made = [store.providers.create(record, sealed), ...admission.succeed(receiptOf({ id, version: 1n }))];
          try {
            await write(deps, [...admission.admit, ...made]);
          } catch (error) {
            throw isStoreError(error, "store_already_exists") ? alreadyExists("provider", name) : error;
          }
          logChange(context, workspace, name, "provider created");
          return create(ProviderResponseSchema, { provider: providerMessage(await required(deps, workspace, name)) });
        },
      );
    },

    async getProvider(request) {
      const workspace = namedWorkspace(request.workspaceScope);
      return create(ProviderResponseSchema, {
        provider: providerMessage(await required(deps, workspace, request.name)),
      });
    },

    async listProviders(request, context) {
      const scope = resolveScope(request.workspaceScope, { all: true });
      if (scope.kind === "all" && !callerFrom(context).admin)
        throw permissionDenied("only a platform administrator may list all workspaces", { next: "Name one workspace" });
      if (scope.kind === "workspace") await existingWorkspace(deps, scope.workspace);
      const limit = pageSize(request.pageSize);
      const token = { mac: deps.keys.pageTokens, method: "ListProviders", schema: ListProvidersRequestSchema, request };
      const after = await decodePageToken(token, request.pageToken, objectCursor.length);
      const rows = await store.providers.list({
        ...(scope.kind === "workspace" ? { workspace: scope.workspace } : {}),
        labels: Object.fromEntries(parseLabelSelector(request.labelSelector)),
        after: after === undefined ? undefined : objectCursor.decode(after),
        limit: limit + 1,
      });
      const page = {
        rows,
        limit,
        token,
        schema: ProviderSchema,
        message: providerMessage,
        cursor: objectCursor.encode,
      };
      const { items: providers, nextPageToken } = await pageOf(page);
      return create(ListProvidersResponseSchema, { providers, nextPageToken });
    },

    async updateProvider(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const { provider } = request;
      if (provider === undefined) throw invalidField("provider", "is required");
      const found = new Violations();
      validateProvider(provider, true, workspace, found);
      checkExpirations(request, found);
      throwIfInvalid(found);
      const name = provider.metadata!.name;
      return await admitted(
        deps,
        context,
        { schema: UpdateProviderRequestSchema, request, workspace },
        replay,
        // An update merges: those without an expected version all happen, one after the other.
        (admission) =>
          writes.run(`${workspace}/${name}`, name, async () => {
            for (let attempt = 1; ; attempt++) {
              const record = await required(deps, workspace, name);
              const wanted = provider.metadata!.resourceVersion;
              const replaced = provider.metadata!.id !== "" && provider.metadata!.id !== record.id;
              if (replaced || (wanted !== 0n && wanted !== record.resourceVersion))
                throw versionConflict("provider", name, record.resourceVersion);
              checkFixed(provider, record);
              const attached = await store.sandboxes.usingProvider(workspace, name);
              const { config, labels, annotations, keys, credentials } = mergedChange(deps, record, request);
              await checkConflicts(deps, record, keys, attached);
              const mutationId = randomUUID();
              const version = record.resourceVersion + 1n;
              const targetReceipts = await targets(deps, record, credentials, attached, mutationId);
              const receiptIds = targetReceipts.map(({ receiptId }) => receiptId);
              try {
                await write(deps, [
                  ...admission.admit,
                  store.providers.update(
                    record.id,
                    record.resourceVersion,
                    { config, labels, annotations },
                    credentials,
                  ),
                  store.providers.distinctKeys(workspace, name),
                  store.operations.record(
                    targetReceipts.map((receipt, index) => operationOf(receipt, attached[index]!.id)),
                    clock.now(),
                  ),
                  ...admission.succeed(receiptOf({ id: record.id, version, mutationId, receiptIds })),
                ]);
              } catch (error) {
                // It was changed, deleted or attached in between: the checks have the word, on what is there now.
                if (!isStoreError(error, "store_conflict")) throw error;
                if (attempt < CHANGE_ATTEMPTS) continue;
                throw versionConflict("provider", name);
              }
              logChange(context, workspace, name, "provider updated");
              deps.configurationChanged(attached.map((sandbox) => sandbox.id));
              const changed = await required(deps, workspace, name);
              return create(ProviderResponseSchema, { provider: providerMessage(changed), mutationId, targetReceipts });
            }
          }),
      );
    },

    async deleteProvider(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      const again = (receipt: Uint8Array) => fromBinary(DeleteProviderResponseSchema, receipt);
      return await admitted(
        deps,
        context,
        { schema: DeleteProviderRequestSchema, request, workspace },
        again,
        async (admission) => {
          for (let attempt = 1; ; attempt++) {
            const record = await store.providers.byName(workspace, request.name);
            if (record === undefined) {
              const absence = await missing(deps, "provider", workspace, request.name);
              if (!request.allowMissing || !isMissing(absence, "provider")) throw absence;
            }
            if (record !== undefined) await refuseAttached(deps, record);
            const outcome = record === undefined ? DeletionOutcome.ALREADY_ABSENT : DeletionOutcome.COMPLETED;
            const response = create(DeleteProviderResponseSchema, { outcome });
            try {
              await write(deps, [
                ...admission.admit,
                ...(record === undefined ? [] : [store.providers.remove(record.id, "any")]),
                ...admission.succeed(toBinary(DeleteProviderResponseSchema, response)),
              ]);
            } catch (error) {
              // It was attached or deleted in between.
              if (!isStoreError(error, "store_conflict") || attempt >= CHANGE_ATTEMPTS) throw error;
              continue;
            }
            if (record !== undefined) logChange(context, workspace, request.name, "provider deleted");
            return response;
          }
        },
      );
    },
  };
}

/** What a repeated create or update is answered with: the provider at the version it had then. */
interface ProviderReceipt {
  readonly id: string;
  readonly version: bigint;
  readonly mutationId?: string;
  /** Receipts for the sandboxes that had it. */
  readonly receiptIds?: readonly string[];
}

/** A receipt for each sandbox that has the provider, with what is to be in force there once the change is stored. */
async function targets(
  deps: ApiDeps,
  record: ProviderRecord,
  credentials: CredentialChange,
  attached: readonly SandboxRecord[],
  mutationId: string,
): Promise<ProviderMutationReceipt[]> {
  const after = await storeAfter(deps.store, record, credentials);
  const store: ApiDeps["store"] = Object.assign(Object.create(deps.store), after);
  const { name: provider, workspace } = record;
  const at = deps.clock.now();
  const receipts: ProviderMutationReceipt[] = [];
  for (const sandbox of attached) {
    const changed = await after.providers.byName(workspace, provider);
    const desired = await buildSnapshot({ ...deps, store }, sandbox)
      .then((snapshot) => desiredIdentity(sandbox, snapshot, changed))
      .catch(() => undefined);
    receipts.push(newReceipt({ kind: ProviderMutationKind.UPDATE, provider, workspace, mutationId, desired, at }));
  }
  return receipts;
}

function receiptOf({ version, ...rest }: ProviderReceipt): string {
  return JSON.stringify({ ...rest, version: version.toString() });
}

async function refuseAttached(deps: ApiDeps, record: ProviderRecord): Promise<void> {
  const attached = await deps.store.sandboxes.usingProvider(record.workspace, record.name);
  if (attached.length === 0) return;
  const names = attached.slice(0, 10).map((sandbox) => sandbox.name);
  throw failedPrecondition(
    `provider "${record.name}" is attached to ${attached.length} sandboxes: ${names.join(", ")}`,
    {
      next: "Delete these sandboxes first",
    },
  );
}

async function required(deps: ApiDeps, workspace: string, name: string): Promise<ProviderRecord> {
  const record = await deps.store.providers.byName(workspace, name);
  if (record === undefined) throw await missing(deps, "provider", workspace, name);
  return record;
}

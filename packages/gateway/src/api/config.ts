import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  GetSandboxPolicyStatusResponseSchema,
  ListSandboxPoliciesRequestSchema,
  ListSandboxPoliciesResponseSchema,
  PolicySource,
  type SandboxPolicy,
  SandboxPolicyRevisionSchema,
  type UpdateConfigRequest,
  UpdateConfigRequestSchema,
  type UpdateConfigResponse,
  UpdateConfigResponseSchema,
} from "@openshell/api";
import {
  failedPrecondition,
  invalidArgument,
  notFound,
  permissionDenied,
  requestIdError,
  throwIfInvalid,
  versionConflict,
} from "@openshell/api/errors.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { Violations } from "@openshell/api/violations.ts";
import { LogField } from "@openshell/base";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { buildSnapshot } from "../delivery/snapshot.ts";
import { waitLimit } from "../delivery/wait-limit.ts";
import { checkedPolicy } from "../policies/check.ts";
import { defaultPolicy } from "../policies/default-policy.ts";
import { GLOBAL_POLICY_KEY, globalPolicy } from "../policies/effective.ts";
import { mergedPolicy } from "../policies/merge.ts";
import { checkMiddlewares } from "../policies/middleware.ts";
import { mergeNote, policyNotes } from "../policies/notes.ts";
import { policyHash } from "../policies/rules.ts";
import { staticFieldChanges } from "../policies/static-fields.ts";
import { requestedSetting } from "../settings/registry.ts";
import { isStoreError } from "../store/errors.ts";
import { GLOBAL_SCOPE, type PolicyRevision, type SandboxRecord } from "../store/types.ts";
import { type Admission, admitted } from "./admission.ts";
import { type ApiDeps, callerFrom, namedSandbox } from "./context.ts";
import { revisionMessage } from "./convert.ts";
import { checkNotManaged, removeGlobalPolicy, storeGlobalPolicy } from "./global-policy.ts";
import { write } from "./mutations.ts";
import { pageOf } from "./pages.ts";
import { sandboxConfigMessage } from "./sandbox-config.ts";
import { type SettingRequest, shownValue, storeGlobalSetting, storeSandboxSetting } from "./settings.ts";
import { checkAnnotations } from "./validate-sandbox.ts";

/** Attempts when another writer stores a revision at the same time. */
const VERSION_ATTEMPTS = 5;

type ConfigHandlers = Pick<
  OpenShellImpl,
  "updateConfig" | "getSandboxConfig" | "getSandboxPolicyStatus" | "listSandboxPolicies"
>;

export function configHandlers(deps: ApiDeps): ConfigHandlers {
  const { store } = deps;
  const writes = new KeyedMutex(deps.clock, "sandbox");
  /** Scope of policies: a sandbox's id, or the gateway. */
  const scopeOf = async (request: ConfigScope): Promise<string> => {
    const workspace = workspaceOf(request);
    return request.global ? GLOBAL_SCOPE : (await namedSandbox(deps, workspace, request.sandbox)).id;
  };
  const activeVersion = async (scope: string): Promise<number> =>
    (scope === GLOBAL_SCOPE
      ? (await globalPolicy(store))?.version
      : (await store.sandboxes.byId(scope))?.status.currentPolicyVersion) ?? 0;

  return {
    async updateConfig(request, context) {
      const { workspace, setting } = checkedUpdate(request, callerFrom(context).admin);
      const options = { schema: UpdateConfigRequestSchema, request, workspace };
      const replay = async (receipt: Uint8Array): Promise<UpdateConfigResponse> => {
        const { sandboxId, response } = readReceipt(receipt);
        const there = sandboxId === GLOBAL || (await store.sandboxes.byId(sandboxId)) !== undefined;
        if (!there) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
        return response;
      };
      return await admitted(deps, context, options, replay, async (admission) => {
        const { subject } = callerFrom(context);
        if (request.global) {
          const receipt = (answer: UpdateConfigResponse) => receiptOf(GLOBAL, answer);
          const { response, changed } = await writes.run(GLOBAL_SCOPE, "of the gateway", async () => {
            if (setting !== undefined) return await storeGlobalSetting(deps, setting, admission, receipt);
            if (request.deleteSetting) return await removeGlobalPolicy(deps, admission, receipt);
            return await storeGlobalPolicy(deps, request.policy!, admission, receipt);
          });
          if (changed) {
            const fields =
              setting !== undefined
                ? { setting: setting.key, setting_value: shownValue(setting.value) }
                : { policy_version: response.version, policy_hash: response.policyHash };
            const what = setting !== undefined ? "setting" : "policy";
            deps.log.info({ [LogField.subject]: subject, ...fields }, `${what} of the gateway changed`);
            deps.publish({ kind: "everyone" });
          }
          return response;
        }
        const record = await namedSandbox(deps, workspace, request.sandbox);
        const { response, changed, operationId } = await writes.run(record.id, record.name, () =>
          setting === undefined
            ? storePolicy(deps, record, request, admission)
            : storeSandboxSetting(deps, record, request, setting, admission, (answer) => receiptOf(record.id, answer)),
        );
        if (!changed) {
          // Whoever repeats a change wants it in force: one that was refused gets another chance.
          deps.sessions.get(record.id)?.delivery?.reconcile();
          return response;
        }
        const [fields, what] =
          setting === undefined
            ? [{ policy_version: response.version, policy_hash: response.policyHash }, "policy updated"]
            : [{ setting: setting.key, setting_value: shownValue(setting.value) }, "setting changed"];
        deps.log.info({ [LogField.sandboxId]: record.id, [LogField.subject]: subject, ...fields }, what);
        deps.configurationChanged([record.id]);
        // A connected supervisor answers within milliseconds; the revision's status tells what came of it in any case.
        const session = deps.sessions.get(record.id);
        // One that polls answers when it asks the next time.
        const state = session?.polls === true ? undefined : session?.state;
        await deps.operations.wait(operationId, waitLimit(context, state), deps);
        return response;
      });
    },

    async getSandboxConfig(request) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.name, "name");
      return sandboxConfigMessage(record, await buildSnapshot(deps, record));
    },

    async getSandboxPolicyStatus(request) {
      const scope = await scopeOf(request);
      const revision =
        request.version === 0 ? await store.policies.latest(scope) : await store.policies.get(scope, request.version);
      if (revision === undefined)
        throw notFound("policy revision", request.version === 0 ? "latest" : String(request.version));
      return create(GetSandboxPolicyStatusResponseSchema, {
        revision: revisionMessage(revision, true),
        activeVersion: await activeVersion(scope),
      });
    },

    async listSandboxPolicies(request) {
      const scope = await scopeOf(request);
      const limit = pageSize(request.pageSize);
      const token = {
        mac: deps.keys.pageTokens,
        method: "ListSandboxPolicies",
        schema: ListSandboxPoliciesRequestSchema,
        request,
      };
      const before = (await decodePageToken(token, request.pageToken, 1))?.[0];
      const rows = await store.policies.list(scope, {
        ...(before === undefined ? {} : { before: Number(before) }),
        limit: limit + 1,
      });
      const message = (revision: PolicyRevision) => revisionMessage(revision, false);
      const cursor = ({ version }: PolicyRevision) => [String(version)];
      const page = { rows, limit, token, schema: SandboxPolicyRevisionSchema, message, cursor };
      const { items: revisions, nextPageToken } = await pageOf(page);
      return create(ListSandboxPoliciesResponseSchema, { revisions, nextPageToken });
    },
  };
}

interface ConfigScope {
  readonly global: boolean;
  readonly workspaceScope?: Parameters<typeof namedWorkspace>[0];
  readonly sandbox: string;
}

/** The workspace of a request about one sandbox; `global` excludes both, and then it is empty. */
function workspaceOf({ global, workspaceScope, sandbox }: ConfigScope): string {
  if (!global) return namedWorkspace(workspaceScope);
  const found = new Violations();
  found.require(workspaceScope === undefined, "workspace_scope", "must be absent with global");
  found.require(sandbox === "", "sandbox", "must be empty with global");
  throwIfInvalid(found);
  return "";
}

/** What can be said of a request without its sandbox, and the setting that it changes. */
function checkedUpdate(
  request: UpdateConfigRequest,
  admin: boolean,
): { readonly workspace: string; readonly setting: SettingRequest | undefined } {
  const setting = request.settingKey !== "";
  const workspace = request.global ? "" : workspaceOf(request);
  const given = [request.policy !== undefined, setting, request.mergeOperations.length > 0];
  const found = new Violations();
  const one = given.filter(Boolean).length === 1;
  found.require(one, "policy", "exactly one of policy, setting_key and merge_operations must be set");
  found.require(setting || request.settingValue === undefined, "setting_value", "needs a setting_key");
  found.require(setting || !request.deleteSetting, "delete_setting", "needs a setting_key");
  if (request.global) {
    found.require(request.workspaceScope === undefined, "workspace_scope", "must be absent with global");
    found.require(request.sandbox === "", "sandbox", "must be empty with global");
    const annotated = Object.keys(request.annotations).length > 0;
    found.require(!annotated, "annotations", "are of sandboxes: must be empty with global");
    const version = request.expectedResourceVersion;
    found.require(version === 0n, "expected_resource_version", "is of sandboxes: must be 0 with global");
    const parts = "change the policy of one sandbox: give the whole policy with global";
    found.require(request.mergeOperations.length === 0, "merge_operations", parts);
  }
  checkAnnotations(request.annotations, "annotations", found);
  const policyKey = request.global && request.settingKey === GLOBAL_POLICY_KEY && request.deleteSetting;
  if (policyKey)
    found.require(request.settingValue === undefined, "setting_value", "must be absent with delete_setting");
  const wanted = setting && !policyKey ? requestedSetting(request, found) : undefined;
  throwIfInvalid(found);
  if (request.global && !admin)
    throw permissionDenied("only a platform administrator may change the gateway", {
      next: "Change them for one sandbox",
    });
  return { workspace, setting: wanted };
}

const UUID_LENGTH = 36;
/** Stands for a sandbox in receipts of changes of the gateway. */
const GLOBAL = "00000000-0000-0000-0000-000000000000";

/** What a repeated request is answered with: the first answer, as long as its sandbox exists. */
function receiptOf(sandboxId: string, response: UpdateConfigResponse): Uint8Array {
  return Buffer.concat([Buffer.from(sandboxId), toBinary(UpdateConfigResponseSchema, response)]);
}

function readReceipt(receipt: Uint8Array): { readonly sandboxId: string; readonly response: UpdateConfigResponse } {
  return {
    sandboxId: Buffer.from(receipt.subarray(0, UUID_LENGTH)).toString(),
    response: fromBinary(UpdateConfigResponseSchema, receipt.subarray(UUID_LENGTH)),
  };
}

/** Stores a new revision unless the newest one is the same. */
async function storePolicy(
  deps: ApiDeps,
  record: SandboxRecord,
  request: UpdateConfigRequest,
  admission: Admission,
): Promise<{ readonly response: UpdateConfigResponse; readonly changed: boolean; readonly operationId: string }> {
  const { store, clock } = deps;
  const { annotations, expectedResourceVersion } = request;
  const answer = (version: number, hash: string) => {
    const response = create(UpdateConfigResponseSchema, { version, policyHash: hash, annotations });
    return { response, done: admission.succeed(receiptOf(record.id, response)) };
  };
  for (let attempt = 1; ; attempt++) {
    const [current, latest] = await Promise.all([store.sandboxes.byId(record.id), store.policies.latest(record.id)]);
    if (current === undefined) throw notFound("sandbox", record.name);
    if (current.deletionAt !== undefined) {
      const next = "Create another sandbox with this policy";
      throw failedPrecondition(`sandbox "${record.name}" is being deleted`, { next });
    }
    if (expectedResourceVersion !== 0n && expectedResourceVersion !== current.resourceVersion) {
      throw versionConflict("sandbox", record.name, current.resourceVersion);
    }
    await checkNotManaged(deps, record.name);
    const { policy, warnings } = proposedPolicy(request, latest, current.spec.providers);
    checkMiddlewares(policy, deps.config);
    const hash = policyHash(policy);
    checkStatic(current, policy);
    if (latest?.hash === hash && sameAnnotations(latest.provenance, annotations)) {
      const { response, done } = answer(latest.version, hash);
      await write(deps, [...admission.admit, ...done]);
      return { response, changed: false, operationId: "" };
    }
    const before = latest?.version ?? 0;
    const { response, done } = answer(before + 1, hash);
    const revision = { scope: record.id, hash, policy, createdAt: clock.now(), provenance: { ...annotations } };
    const patch = {
      annotations: { ...current.annotations, ...annotations },
      ...(current.spec.policy === undefined ? { spec: { ...current.spec, policy } } : {}),
    };
    const target = { policyVersion: before + 1, policySource: PolicySource.SANDBOX };
    const { operationId, decision } = await deps.operations.begin(current, target, clock.now());
    try {
      await write(deps, [
        ...admission.admit,
        ...decision.commands,
        store.policies.append({ ...revision, status: "pending", expectedLatest: before }),
        store.sandboxes.update(record.id, current.resourceVersion, patch),
        ...done,
      ]);
      deps.operations.tell(decision);
      const feed = deps.feeds.of(record.id);
      feed.changed();
      for (const note of [
        ...warnings.map(mergeNote),
        ...policyNotes(policy, current.spec.providers, current.spec.policy),
      ])
        feed.addEvent(note, clock.now());
      return { response, changed: true, operationId };
    } catch (error) {
      if (!isStoreError(error, "store_conflict") || attempt >= VERSION_ATTEMPTS) throw error;
    }
  }
}

/** The policy that a request asks for: its own, or the newest one after its operations. */
function proposedPolicy(
  request: UpdateConfigRequest,
  latest: PolicyRevision | undefined,
  providers: readonly string[],
): { readonly policy: SandboxPolicy; readonly warnings: readonly string[] } {
  if (request.policy !== undefined) return { policy: checkedPolicy(request.policy, providers), warnings: [] };
  const { policy, warnings } = mergedPolicy(latest?.policy ?? defaultPolicy(), request.mergeOperations);
  return { policy: checkedPolicy(policy, providers), warnings };
}

/** What the sandbox was created with stays, whether it runs or not: files and identities on disk depend on it. */
function checkStatic(record: SandboxRecord, policy: SandboxPolicy): void {
  if (record.spec.policy === undefined) return;
  const { violations } = staticFieldChanges(record.spec.policy, policy);
  if (violations.length > 0) throw invalidArgument(violations);
}

function sameAnnotations(a: Readonly<Record<string, string>>, b: Readonly<Record<string, string>>): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

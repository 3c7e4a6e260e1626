import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  ConfigurationAdmissionState,
  GetSandboxConfigResponseSchema,
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
  invalidField,
  notFound,
  requestIdError,
  throwIfInvalid,
  unimplemented,
  versionConflict,
} from "@openshell/api/errors.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { Violations } from "@openshell/api/violations.ts";
import { LogField } from "@openshell/base";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { APPLY_WAIT_MS } from "../delivery/limits.ts";
import { buildSnapshot, revisionNumber } from "../delivery/snapshot.ts";
import { checkedPolicy } from "../policies/check.ts";
import { policyNotes } from "../policies/notes.ts";
import { policyHash } from "../policies/rules.ts";
import { staticFieldChanges } from "../policies/static-fields.ts";
import { isStoreError } from "../store/errors.ts";
import type { PolicyRevision, SandboxRecord } from "../store/types.ts";
import { type Admission, admitted } from "./admission.ts";
import { type ApiDeps, callerFrom, namedSandbox } from "./context.ts";
import { revisionMessage } from "./convert.ts";
import { write } from "./mutations.ts";
import { pageOf } from "./pages.ts";
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
  const sandboxScope = (request: {
    readonly global: boolean;
    readonly workspaceScope?: Parameters<typeof namedWorkspace>[0];
    readonly sandbox: string;
  }) => {
    if (request.global)
      throw unimplemented("a global policy is not built yet in this gateway", {
        next: "Set the policy of each sandbox",
      });
    return namedSandbox(deps, namedWorkspace(request.workspaceScope), request.sandbox);
  };

  return {
    async updateConfig(request, context) {
      const given = [request.policy !== undefined, request.settingKey !== "", request.mergeOperations.length > 0];
      if (given.filter(Boolean).length !== 1)
        throw invalidField("policy", "exactly one of policy, setting_key and merge_operations must be set");
      if (request.settingKey !== "") throw unimplemented("settings are not built yet in this gateway");
      if (request.mergeOperations.length > 0) {
        throw unimplemented("policy merge operations are not built yet in this gateway", {
          next: "Send the complete policy",
        });
      }
      const found = new Violations();
      checkAnnotations(request.annotations, "annotations", found);
      throwIfInvalid(found);
      const record = await sandboxScope(request);
      const options = { schema: UpdateConfigRequestSchema, request, workspace: record.workspace };
      const replay = async (receipt: Uint8Array): Promise<UpdateConfigResponse> => {
        if ((await store.sandboxes.byId(record.id)) === undefined) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
        return fromBinary(UpdateConfigResponseSchema, receipt);
      };
      return await admitted(deps, context, options, replay, async (admission) => {
        const { response, changed } = await writes.run(record.id, record.name, () =>
          storePolicy(deps, record, request, admission),
        );
        if (!changed) {
          // Whoever repeats a change wants it in force: one that was refused gets another chance.
          deps.sessions.get(record.id)?.delivery?.reconcile();
          return response;
        }
        const fields = { policy_version: response.version, policy_hash: response.policyHash };
        const { subject } = callerFrom(context);
        deps.log.info({ [LogField.sandboxId]: record.id, [LogField.subject]: subject, ...fields }, "policy updated");
        deps.configurationChanged([record.id]);
        // A connected supervisor answers within milliseconds; the revision's status tells what came of it in any case.
        await deps.sessions.get(record.id)?.delivery?.whenApplied(response.version, APPLY_WAIT_MS);
        return response;
      });
    },

    async getSandboxConfig(request) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.name, "name");
      const { config, providerRevision } = await buildSnapshot(deps, record);
      const admission = record.status.configurationAdmission;
      const refused = admission?.state === ConfigurationAdmissionState.REJECTED;
      return create(GetSandboxConfigResponseSchema, {
        ...(config.policy === undefined ? {} : { policy: config.policy }),
        version: config.policyVersion,
        policyHash: config.policyHash,
        configRevision: revisionNumber(config.configRevision),
        policySource: PolicySource.SANDBOX,
        providerEnvRevision: revisionNumber(providerRevision),
        workspace: record.workspace,
        policyValidationFailureMode: deps.config.policyValidationFailureMode,
        configurationAdmitted: !refused,
        configurationError: refused ? (admission?.error ?? "") : "",
        configurationInstanceId: admission?.instanceId ?? "",
        providerAttachmentEpoch: record.spec.providerAttachmentEpoch,
      });
    },

    async getSandboxPolicyStatus(request) {
      const record = await sandboxScope(request);
      const revision =
        request.version === 0
          ? await store.policies.latest(record.id)
          : await store.policies.get(record.id, request.version);
      if (revision === undefined)
        throw notFound("policy revision", request.version === 0 ? "latest" : String(request.version));
      return create(GetSandboxPolicyStatusResponseSchema, {
        revision: revisionMessage(revision, true),
        activeVersion: record.status.currentPolicyVersion,
      });
    },

    async listSandboxPolicies(request) {
      const record = await sandboxScope(request);
      const limit = pageSize(request.pageSize);
      const token = {
        mac: deps.keys.pageTokens,
        method: "ListSandboxPolicies",
        schema: ListSandboxPoliciesRequestSchema,
        request,
      };
      const before = (await decodePageToken(token, request.pageToken, 1))?.[0];
      const rows = await store.policies.list(record.id, {
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

/** Stores a new revision unless the newest one is the same. */
async function storePolicy(
  deps: ApiDeps,
  record: SandboxRecord,
  request: UpdateConfigRequest,
  admission: Admission,
): Promise<{ readonly response: UpdateConfigResponse; readonly changed: boolean }> {
  const { store, clock } = deps;
  const { annotations, expectedResourceVersion } = request;
  const policy = checkedPolicy(request.policy!, record.spec.providers);
  const hash = policyHash(policy);
  const answer = (version: number) => {
    const response = create(UpdateConfigResponseSchema, { version, policyHash: hash, annotations });
    return { response, done: admission.succeed(toBinary(UpdateConfigResponseSchema, response)) };
  };
  for (let attempt = 1; ; attempt++) {
    const [current, latest] = await Promise.all([store.sandboxes.byId(record.id), store.policies.latest(record.id)]);
    if (current === undefined) throw notFound("sandbox", record.name);
    if (current.deletionAt !== undefined) throw failedPrecondition(`sandbox "${record.name}" is being deleted`);
    if (expectedResourceVersion !== 0n && expectedResourceVersion !== current.resourceVersion) {
      throw versionConflict("sandbox", record.name, current.resourceVersion);
    }
    checkStatic(current, policy);
    if (latest?.hash === hash && sameAnnotations(latest.provenance, annotations)) {
      const { response, done } = answer(latest.version);
      await write(deps, [...admission.admit, ...done]);
      return { response, changed: false };
    }
    const before = latest?.version ?? 0;
    const { response, done } = answer(before + 1);
    const revision = { scope: record.id, hash, policy, createdAt: clock.now(), provenance: { ...annotations } };
    const patch = {
      annotations: { ...current.annotations, ...annotations },
      ...(current.spec.policy === undefined ? { spec: { ...current.spec, policy } } : {}),
    };
    try {
      await write(deps, [
        ...admission.admit,
        store.policies.append({ ...revision, status: "pending", expectedLatest: before }),
        store.sandboxes.update(record.id, current.resourceVersion, patch),
        ...done,
      ]);
      const feed = deps.feeds.of(record.id);
      feed.changed();
      for (const note of policyNotes(policy, current.spec.providers, current.spec.policy))
        feed.addEvent(note, clock.now());
      return { response, changed: true };
    } catch (error) {
      if (!isStoreError(error, "store_conflict") || attempt >= VERSION_ATTEMPTS) throw error;
    }
  }
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

import { create } from "@bufbuild/protobuf";
import { type SandboxPolicy, type UpdateConfigResponse, UpdateConfigResponseSchema } from "@openshell/api";
import { failedPrecondition, throwIfInvalid } from "@openshell/api/errors.ts";
import { Violations } from "@openshell/api/violations.ts";
import { checkedPolicy } from "../policies/check.ts";
import { GLOBAL_POLICY_KEY, globalPolicy } from "../policies/effective.ts";
import { checkMiddlewares } from "../policies/middleware.ts";
import { policyHash } from "../policies/rules.ts";
import { GLOBAL_SCOPE } from "../store/types.ts";
import type { Admission } from "./admission.ts";
import type { ApiDeps } from "./context.ts";
import { write } from "./mutations.ts";

type Receipt = (response: UpdateConfigResponse) => Uint8Array;

interface Change {
  readonly response: UpdateConfigResponse;
  readonly changed: boolean;
}

/**
 * A policy of the gateway as it is stored: what holds in sandboxes that run, and of no sandbox's credentials.
 *
 * @throws ApiError as {@link checkedPolicy}.
 */
function checkedGlobalPolicy(proposed: SandboxPolicy): SandboxPolicy {
  const found = new Violations();
  const fixed = "is fixed for each sandbox when it starts: a policy of the gateway has network sections only";
  for (const name of ["filesystem", "landlock", "process"] as const)
    found.require(proposed[name] === undefined, `policy.${name}`, fixed);
  for (const [key, { endpoints }] of Object.entries(proposed.networkPolicies)) {
    for (const [index, { credentialBinding }] of endpoints.entries()) {
      const field = `policy.network_policies[${key}].endpoints[${index}].credential_binding`;
      found.require(
        credentialBinding === undefined,
        field,
        "is of one sandbox's providers: not in a policy of the gateway",
      );
    }
  }
  throwIfInvalid(found);
  return checkedPolicy(proposed, []);
}

/** Puts a policy in force in every sandbox. One change of the gateway at a time: versions are counted ahead. */
export async function storeGlobalPolicy(
  deps: ApiDeps,
  proposed: SandboxPolicy,
  admission: Admission,
  receipt: Receipt,
): Promise<Change> {
  const { store, clock } = deps;
  const policy = checkedGlobalPolicy(proposed);
  checkMiddlewares(policy, deps.config);
  const hash = policyHash(policy);
  const [{ revision, values }, latest] = await Promise.all([
    store.settings.get(GLOBAL_SCOPE),
    store.policies.latest(GLOBAL_SCOPE),
  ]);
  const same = latest?.hash === hash;
  const before = latest?.version ?? 0;
  const version = same ? before : before + 1;
  const changed = values.get(GLOBAL_POLICY_KEY) !== BigInt(version);
  const settingsRevision = changed ? revision + 1n : revision;
  const response = create(UpdateConfigResponseSchema, { version, policyHash: hash, settingsRevision });
  const facts = { scope: GLOBAL_SCOPE, hash, policy, createdAt: clock.now(), provenance: {} };
  await write(deps, [
    ...admission.admit,
    ...(same ? [] : [store.policies.append({ ...facts, status: "loaded", expectedLatest: before })]),
    ...(changed ? [store.settings.set(GLOBAL_SCOPE, GLOBAL_POLICY_KEY, BigInt(version))] : []),
    ...admission.succeed(receipt(response)),
  ]);
  return { response, changed };
}

/** Gives every sandbox its own policy back. */
export async function removeGlobalPolicy(deps: ApiDeps, admission: Admission, receipt: Receipt): Promise<Change> {
  const { store } = deps;
  const { revision, values } = await store.settings.get(GLOBAL_SCOPE);
  const deleted = values.has(GLOBAL_POLICY_KEY);
  const settingsRevision = deleted ? revision + 1n : revision;
  const response = create(UpdateConfigResponseSchema, { settingsRevision, deleted });
  await write(deps, [
    ...admission.admit,
    ...(deleted ? [store.settings.remove(GLOBAL_SCOPE, GLOBAL_POLICY_KEY)] : []),
    ...admission.succeed(receipt(response)),
  ]);
  return { response, changed: deleted };
}

/** While the gateway has a policy, those of sandboxes stay as they are. @throws ApiError FAILED_PRECONDITION. */
export async function checkNotManaged(deps: Pick<ApiDeps, "store">, sandbox: string): Promise<void> {
  const global = await globalPolicy(deps.store);
  if (global === undefined) return;
  const next = "Remove that first: openshell policy delete --global";
  throw failedPrecondition(
    `the policy of sandbox "${sandbox}" is managed globally: version ${global.version} of the gateway's policy is in force`,
    { next },
  );
}

import type { SandboxPolicy } from "@openshell/api";
import { RuntimeError } from "@openshell/base";
import { GLOBAL_SCOPE, type PolicyRevision, type Store } from "../store/types.ts";
import { defaultPolicy } from "./default-policy.ts";
import { policyHash } from "./rules.ts";

type Reads = Pick<Store, "policies" | "settings">;

/** Key under which the gateway's settings hold the version of its policy, while it has one. Never shown as a setting. */
export const GLOBAL_POLICY_KEY = "policy";

/** A sandbox's own policy: the newest revision, else the restrictive default as version 0. */
export interface OwnPolicy {
  readonly policy: SandboxPolicy;
  readonly version: number;
  readonly hash: string;
  readonly stored: boolean;
}

/** The policy in force for a sandbox. */
export interface EffectivePolicy extends OwnPolicy {
  /** Revision of the gateway's policy, which is in force in place of the sandbox's; 0: the sandbox's is. */
  readonly globalVersion: number;
}

export async function ownPolicy(store: Pick<Store, "policies">, sandboxId: string): Promise<OwnPolicy> {
  const latest = await store.policies.latest(sandboxId);
  if (latest !== undefined) return { policy: latest.policy, version: latest.version, hash: latest.hash, stored: true };
  const policy = defaultPolicy();
  return { policy, version: 0, hash: policyHash(policy), stored: false };
}

/**
 * The gateway's policy, while it has one.
 *
 * @throws RuntimeError global_policy_missing: one is to be in force and is not there. A sandbox's own would allow what it forbids.
 */
export async function globalPolicy(store: Reads): Promise<PolicyRevision | undefined> {
  const version = (await store.settings.get(GLOBAL_SCOPE)).values.get(GLOBAL_POLICY_KEY);
  if (version === undefined) return undefined;
  const revision = await store.policies.get(GLOBAL_SCOPE, Number(version));
  if (revision !== undefined) return revision;
  throw new RuntimeError(
    "global_policy_missing",
    `version ${version} of the gateway's policy is to be in force, but the database does not have it`,
    {
      next: "Set it anew with `openshell policy set --global --policy FILE`, or remove it with `openshell policy delete --global`",
    },
  );
}

/**
 * The network sections of the gateway's policy, if it has one, else of the sandbox's own. The others are the sandbox's in
 * any case: they are fixed when it starts.
 */
export async function effectivePolicy(store: Reads, sandboxId: string): Promise<EffectivePolicy> {
  const [own, global] = await Promise.all([ownPolicy(store, sandboxId), globalPolicy(store)]);
  if (global === undefined) return { ...own, globalVersion: 0 };
  const { policy, hash } = underGlobal(own.policy, global.policy);
  return { ...own, policy, hash, globalVersion: global.version };
}

interface Composed {
  readonly global: SandboxPolicy;
  readonly policy: SandboxPolicy;
  readonly hash: string;
}

/** By a sandbox's own policy, which the store gives again and again, and to many sandboxes. */
const composed = new WeakMap<SandboxPolicy, Composed>();

/** What the store gives is frozen, and so is what comes of it. A default is made anew each time, and not found again. */
function underGlobal(own: SandboxPolicy, global: SandboxPolicy): Composed {
  const known = composed.get(own);
  if (known?.global === global) return known;
  const { networkPolicies, networkMiddlewares } = global;
  const policy: SandboxPolicy = Object.freeze({ ...own, networkPolicies, networkMiddlewares });
  const made = { global, policy, hash: policyHash(policy) };
  composed.set(own, made);
  return made;
}

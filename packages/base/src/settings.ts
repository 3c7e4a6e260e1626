/** A setting that can be given a value, for one sandbox or for all. */
export interface RegisteredSetting {
  readonly key: string;
  readonly type: "bool" | "string";
  /** All values of a string. */
  readonly allowed?: readonly string[];
  /** Whether something in this version acts on it. */
  readonly hasEffect: boolean;
}

/**
 * Every setting, by key. `ocsf_json_enabled` is acted on in sandboxes; the others are stored, shown and delivered, and that is all:
 * providers work in one way, and there are no proposals of policies to enable or approve.
 */
export const SETTINGS: readonly RegisteredSetting[] = [
  { key: "agent_policy_proposals_enabled", type: "bool", hasEffect: false },
  { key: "ocsf_json_enabled", type: "bool", hasEffect: true },
  { key: "proposal_approval_mode", type: "string", allowed: ["manual", "auto"], hasEffect: false },
  { key: "providers_v2_enabled", type: "bool", hasEffect: false },
];

/** Said of a setting that was changed, where it is true. */
export const NO_EFFECT = "nothing in this version acts on it";

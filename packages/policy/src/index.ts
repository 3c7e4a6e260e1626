/** Policies: parse → validate → compile → decide → explain. Pure: no I/O, no clock, no Node built-in. */
export * from "./canonical-target.ts";
export * from "./compile.ts";
export * from "./decision.ts";
export * from "./default-policy.ts";
export * from "./explain.ts";
export { policyHash } from "./hash.ts";
export * from "./limits.ts";
export * from "./merge.ts";
export * from "./merge-proto.ts";
export * from "./model.ts";
export * from "./parse.ts";
export * from "./proto.ts";
export * from "./serialize.ts";
export type { ValidateOptions, ValidationResult } from "./validate.ts";
export { AMBIGUITY_CODE, PROVIDER_RULE_PREFIX, validatePolicy } from "./validate.ts";
export * from "./violation.ts";

/** Credentials: what the agent holds instead, what is sent instead of it, what must not come back. Pure. */
export type { Binding } from "./binding.ts";
export * from "./endpoint.ts";
export * from "./limits.ts";
export * from "./marker-scan.ts";
export * from "./placeholder.ts";
export * from "./proto.ts";
export * from "./scrubber.ts";
export * from "./secret.ts";
export * from "./snapshot.ts";
export * from "./state.ts";

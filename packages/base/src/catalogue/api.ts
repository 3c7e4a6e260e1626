import type { Meaning } from "./meaning.ts";

/** Reasons of the public API (`ErrorInfo.reason`, domain `openshell.nvidia.com`). Clients branch on them: the list only grows. */
export const API_REASONS = {
  INVALID_ARGUMENT: ["Fields of the request are wrong; `BadRequest` names each.", "Correct them"],
  MUTATION_LOCK_TIMEOUT: ["Another change of the same resource takes too long.", "Try again"],
  REQUEST_ID_PAYLOAD_MISMATCH: [
    "The request_id was used for a different request.",
    "Use a new one for a new intent, or repeat the original request unchanged",
  ],
  REQUEST_OUTCOME_UNCERTAIN: [
    "A request with this request_id was started, and its success is not confirmed.",
    "Read the resource before doing anything else",
  ],
  REQUEST_REPLAY_UNAVAILABLE: [
    "The result of this request_id can no longer be repeated.",
    "Read the resource to learn its current state",
  ],
  REQUEST_STREAM_UNAVAILABLE: [
    "The execution of this request_id has ended, and its output is not kept.",
    "Start a new execution with a new request_id",
  ],
  RESOURCE_VERSION_CONFLICT: [
    "The resource was changed by another request.",
    "Read it again and repeat the change on the current version",
  ],
} as const satisfies Readonly<Record<string, Meaning>>;

/** `ErrorInfo.reason` of an error of the public API. */
export type ErrorReason = keyof typeof API_REASONS;

import type { Json } from "../transport/unary.ts";
import { text } from "./sandbox.ts";

/** A `SandboxPolicyRevision` without its body, in the names of structured output. */
export function revisionObject(revision: Json): Json {
  return {
    version: Number(revision["version"] ?? 0),
    hash: text(revision["policyHash"]),
    status: policyStatus(revision["status"]),
    created_at: revision["createdTime"] ?? null,
    loaded_at: revision["loadedTime"] ?? null,
    load_error: text(revision["loadError"]),
    provenance: revision["provenance"] ?? {},
  };
}

/** `POLICY_STATUS_LOADED` → `loaded`. */
export function policyStatus(value: unknown): string {
  return (
    text(value)
      .replace(/^POLICY_STATUS_/, "")
      .toLowerCase() || "unspecified"
  );
}

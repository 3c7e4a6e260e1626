import type { SandboxPolicy } from "@openshell/api";
import { unboundProviders } from "../providers/environment.ts";
import { staticFieldChanges } from "./static-fields.ts";

/** Something that is accepted, yet not what its author may expect: told as a platform event. */
export interface PolicyNote {
  readonly type: "Warning";
  readonly reason: "CredentialUnbound" | "PolicyMerged" | "RestartNeeded";
  readonly message: string;
}

/** Something that an operation on a part of a policy left as it was, or did in another place than named. */
export function mergeNote(message: string): PolicyNote {
  return { type: "Warning", reason: "PolicyMerged", message: message.slice(0, 1024) };
}

/** What to tell about a policy of a sandbox with these providers; `baseline` is what it was created with, if it runs already. */
export function policyNotes(
  policy: SandboxPolicy | undefined,
  providers: readonly string[],
  baseline: SandboxPolicy | undefined,
): readonly PolicyNote[] {
  const unbound = policy === undefined ? providers : unboundProviders(policy, providers);
  const notes: PolicyNote[] = unbound.map((name) => ({
    type: "Warning",
    reason: "CredentialUnbound",
    message: `provider "${name}" is attached, but no endpoint of the policy names it in credential_binding: its credentials can be used nowhere`,
  }));
  const pending =
    policy === undefined || baseline === undefined ? [] : staticFieldChanges(baseline, policy).pendingPaths;
  if (pending.length > 0) {
    const message = `stop and start the sandbox to open these paths: ${pending.join(", ")}`;
    notes.push({ type: "Warning", reason: "RestartNeeded", message: message.slice(0, 1024) });
  }
  return notes;
}

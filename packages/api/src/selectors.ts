import { invalidField } from "./errors.ts";
import type { WorkspaceSelector } from "./generated/datamodel_pb.js";
import { routableNameProblem } from "./names.ts";

/** What a request addresses. `platform` is the absent selector, where the RPC has a meaning for it. */
export type WorkspaceScope =
  | { readonly kind: "workspace"; readonly workspace: string }
  | { readonly kind: "all" }
  | { readonly kind: "platform" };

/** Which selectors a request accepts. A named workspace always is; the rest must be asked for. */
export interface ScopeRule {
  /** `all_workspaces`: ListSandboxes, ListSandboxTemplates, ListProviders and ListServices only. The caller must be a platform administrator. */
  readonly all?: boolean;
  /** Absent = platform or global: the profile RPCs, and configuration requests with `global = true`. */
  readonly platform?: boolean;
  readonly field?: string;
}

/**
 * Reads a selector under a rule. Nothing is ever defaulted: the workspace `default` has to be written out, and a selector without an arm is an
 * error, never "all". Requests of 0.0.x clients, which sent a plain string here, fail to decode or end here.
 *
 * @throws ApiError INVALID_ARGUMENT naming the field.
 */
export function resolveScope(selector: WorkspaceSelector | undefined, rule: ScopeRule = {}): WorkspaceScope {
  const field = rule.field ?? "workspace_scope";
  if (selector === undefined) {
    if (rule.platform) return { kind: "platform" };
    throw invalidField(field, `is required; name a workspace${rule.all ? " or select all workspaces" : ""}`);
  }
  const { selection } = selector;
  switch (selection.case) {
    case "workspace": {
      const problem =
        selection.value === "" ? 'must not be empty; write out "default"' : routableNameProblem(selection.value);
      if (problem !== undefined) throw invalidField(`${field}.workspace`, problem);
      return { kind: "workspace", workspace: selection.value };
    }
    case "allWorkspaces":
      if (rule.all) return { kind: "all" };
      throw invalidField(`${field}.all_workspaces`, "is not accepted here; name one workspace");
    default:
      throw invalidField(field, `must select a workspace${rule.all ? " or all workspaces" : ""}; none is the default`);
  }
}

/** The one workspace that a request names, for the many RPCs that accept nothing else. */
export function namedWorkspace(selector: WorkspaceSelector | undefined, field = "workspace_scope"): string {
  const scope = resolveScope(selector, { field });
  if (scope.kind !== "workspace") throw invalidField(field, "must name one workspace");
  return scope.workspace;
}

import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { WorkspaceSelectorSchema } from "./generated/datamodel_pb.js";
import { namedWorkspace, resolveScope } from "./selectors.ts";

const named = (value: string) => create(WorkspaceSelectorSchema, { selection: { case: "workspace", value } });
const all = create(WorkspaceSelectorSchema, { selection: { case: "allWorkspaces", value: {} } });
const neither = create(WorkspaceSelectorSchema);

describe("resolveScope", () => {
  it("accepts a named workspace everywhere", () => {
    for (const rule of [{}, { all: true }, { platform: true }]) {
      expect(resolveScope(named("default"), rule)).toEqual({ kind: "workspace", workspace: "default" });
    }
    expect(namedWorkspace(named("team-1"))).toBe("team-1");
  });

  it("accepts all workspaces and absence only where the RPC has a meaning for them", () => {
    expect(resolveScope(all, { all: true })).toEqual({ kind: "all" });
    expect(resolveScope(undefined, { platform: true })).toEqual({ kind: "platform" });
    expect(() => resolveScope(all, { platform: true })).toThrow("workspace_scope.all_workspaces");
    expect(() => resolveScope(all)).toThrow("workspace_scope.all_workspaces");
    expect(() => resolveScope(undefined, { all: true })).toThrow("workspace_scope");
    expect(() => namedWorkspace(undefined)).toThrow("workspace_scope");
  });

  it("never reads an empty selector as the default workspace or as all of them", () => {
    for (const rule of [{}, { all: true }, { platform: true }, { all: true, platform: true }]) {
      expect(() => resolveScope(neither, rule)).toThrow("workspace_scope");
      expect(() => resolveScope(named(""), rule)).toThrow("workspace_scope.workspace");
    }
  });

  it("refuses names that no workspace can have", () => {
    for (const name of ["Default", "a--b", "../x", "a".repeat(20), "a b", "-a"]) {
      expect(() => resolveScope(named(name))).toThrow("workspace_scope.workspace");
    }
  });
});

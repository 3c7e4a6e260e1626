import { randomUUID } from "node:crypto";
import { Code } from "@connectrpc/connect";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, hasSelector, inWorkspace, isBuilt, refusal, requestOf, rpcNames, sampleOf } from "./calls.ts";

/** The lists that a platform administrator may ask of all workspaces. */
const ALL: readonly RpcName[] = ["listSandboxes", "listSandboxTemplates", "listProviders", "listServices"];
/** RPCs for which the absent selector is the platform or, with `global`, the gateway. */
const ABSENT: readonly RpcName[] = [
  "listProviderProfiles",
  "getProviderProfile",
  "importProviderProfiles",
  "updateProviderProfiles",
  "lintProviderProfiles",
  "deleteProviderProfile",
];

const all = { workspaceScope: { selection: { case: "allWorkspaces", value: {} } } };
const scoped = rpcNames.filter(hasSelector);
const built = scoped.filter(isBuilt);

describe("workspace selectors of every RPC", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  it("finds them", () => {
    expect(scoped.length).toBeGreaterThan(40);
    expect(built).toContain("execSandboxInteractive");
  });

  it.each(scoped.filter((rpc) => !isBuilt(rpc)))("%s is not built, whatever it is sent", async (rpc) => {
    for (const selector of [{}, all, inWorkspace("nowhere")])
      expect((await refusal(gateway, rpc, { ...selector })).code).toBe(Code.Unimplemented);
  });

  it.each(built)("%s refuses an absent selector, one without an arm, and names that no workspace has", async (rpc) => {
    const bad: [string, object, string][] = [
      ["without an arm", { workspaceScope: {} }, ""],
      ["empty", inWorkspace(""), ".workspace"],
      ["upper case", inWorkspace("Default"), ".workspace"],
      ["too long", inWorkspace("a".repeat(20)), ".workspace"],
      ["a path", inWorkspace("../default"), ".workspace"],
      ["a UUID", inWorkspace(randomUUID()), ".workspace"],
      ["a terminal's", inWorkspace("\u001b[31m"), ".workspace"],
    ];
    if (!ABSENT.includes(rpc)) bad.push(["absent", { workspaceScope: undefined }, ""]);
    const start = requestOf(rpc).start ? "start." : "";
    for (const [what, selector, field] of bad) {
      const { code, fields, message, reason } = await refusal(gateway, rpc, sampleOf(rpc, { ...selector }));
      expect([what, code, fields, reason]).toEqual([
        what,
        Code.InvalidArgument,
        [`${start}workspace_scope${field}`],
        "INVALID_ARGUMENT",
      ]);
      expect(message).not.toContain("\u001b");
    }
  });

  it.each(built)("%s says that a workspace does not exist, and never works in another", async (rpc) => {
    const { code, resource } = await refusal(gateway, rpc, sampleOf(rpc, inWorkspace("nowhere")));
    expect([code, resource]).toEqual([Code.NotFound, { kind: "workspace", name: "nowhere" }]);
  });

  it.each(built)("%s accepts all workspaces only where it is a list, of an administrator", async (rpc) => {
    if (!ALL.includes(rpc)) {
      const start = requestOf(rpc).start ? "start." : "";
      const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, all));
      expect([code, fields]).toEqual([Code.InvalidArgument, [`${start}workspace_scope.all_workspaces`]]);
      return;
    }
    expect((await call(gateway, rpc, all)).error).toBeUndefined();
    const admin = gateway.caller;
    gateway.caller = { ...admin, admin: false };
    try {
      expect((await refusal(gateway, rpc, all)).code).toBe(Code.PermissionDenied);
    } finally {
      gateway.caller = admin;
    }
  });

  const named = built.filter((rpc) => {
    const { fields } = requestOf(rpc).schema;
    return rpc !== "createSandbox" && fields.some(({ name }) => name === "name" || name === "sandbox");
  });

  it.each(named)("%s finds nothing under a UUID, and asks for a name that is empty", async (rpc) => {
    const { schema, start } = requestOf(rpc);
    const field = schema.fields.find(({ name }) => name === "name" || name === "sandbox")!.name;
    const { metadata } =
      (await gateway.client.listSandboxes({ ...inWorkspace("default") })).sandboxes[0] ??
      (await gateway.create({ name: "named" }));
    for (const name of [metadata!.id, randomUUID(), "x".repeat(100_000), "\u0000"]) {
      const { code, resource, message } = await refusal(gateway, rpc, sampleOf(rpc, { [field]: name }));
      expect([code, message]).toEqual([Code.NotFound, `${resource?.kind} not found`]);
      expect(resource?.kind).toMatch(/^(sandbox|provider)$/);
    }
    const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, { [field]: "" }));
    expect([code, fields]).toEqual([Code.InvalidArgument, [`${start ? "start." : ""}${field}`]]);
  });
});

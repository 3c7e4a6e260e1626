import { Code } from "@connectrpc/connect";
import { compatibilityMismatches } from "@openshell/api/unimplemented.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { ApiDeps } from "./context.ts";
import { openShellHandlers } from "./services.ts";
import { Harness } from "./testing/harness.ts";

describe("the public service", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  it("serves exactly what the compatibility page says", () => {
    expect(compatibilityMismatches(openShellHandlers({ driver: {} } as unknown as ApiDeps))).toEqual([]);
  });

  it("says who it is and who calls", async () => {
    expect(await gateway.client.health({})).toMatchObject({ status: 1, version: "0.1.0" });
    expect(await gateway.client.getCurrentUser({})).toMatchObject({ subject: "local:0", identityProvider: "local" });
    const info = await gateway.client.getGatewayInfo({});
    expect(info.computeDrivers.map(({ name, capabilities }) => [name, capabilities?.driverName])).toEqual([
      ["local", "fake"],
    ]);
  });

  it("knows the workspace default and no other", async () => {
    expect((await gateway.client.listWorkspaces({})).workspaces.map(({ metadata }) => metadata?.name)).toEqual([
      "default",
    ]);
    expect((await gateway.client.getWorkspace({ name: "default" })).workspace?.status?.phase).toBe(1);
    await expect(gateway.client.getWorkspace({ name: "other" })).rejects.toMatchObject({ code: Code.NotFound });
  });

  it("never takes an absent workspace for the default one", async () => {
    await expect(gateway.client.createSandbox({ spec: {} })).rejects.toMatchObject({ code: Code.InvalidArgument });
    await expect(gateway.client.listSandboxes({})).rejects.toMatchObject({ code: Code.InvalidArgument });
  });

  it("lists sandboxes page by page, by label, and refuses a token of another request", async () => {
    for (const [index, color] of ["red", "blue", "red"].entries())
      await gateway.create({ name: `box-${index}`, labels: { color } });
    const names: string[] = [];
    let pageToken = "";
    do {
      const page = await gateway.client.listSandboxes({ workspaceScope: gateway.scope, pageSize: 2, pageToken });
      names.push(...page.sandboxes.map(({ metadata }) => metadata!.name));
      pageToken = page.nextPageToken;
      if (pageToken !== "") {
        const other = { workspaceScope: gateway.scope, pageToken, labelSelector: "color=red" };
        await expect(gateway.client.listSandboxes(other)).rejects.toMatchObject({ code: Code.InvalidArgument });
      }
    } while (pageToken !== "");
    expect(names).toEqual(["box-0", "box-1", "box-2"]);
    const red = await gateway.client.listSandboxes({ workspaceScope: gateway.scope, labelSelector: "color=red" });
    expect(red.sandboxes.map(({ metadata }) => metadata?.name)).toEqual(["box-0", "box-2"]);
    await expect(gateway.client.listSandboxes({ workspaceScope: gateway.scope, pageSize: -1 })).rejects.toMatchObject({
      code: Code.InvalidArgument,
    });
  });

  it("lists all workspaces for administrators only", async () => {
    const all = { workspaceScope: { selection: { case: "allWorkspaces" as const, value: {} } } };
    expect((await gateway.client.listSandboxes(all)).sandboxes).toEqual([]);
    gateway.caller = { ...gateway.caller, admin: false };
    await expect(gateway.client.listSandboxes(all)).rejects.toMatchObject({ code: Code.PermissionDenied });
  });
});

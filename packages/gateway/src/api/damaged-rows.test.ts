import { DatabaseSync } from "node:sqlite";
import { SandboxPhase } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

describe("a row of the database that cannot be read", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const damage = (statement: string): void => {
    using database = new DatabaseSync(gateway.databasePath, { timeout: 5_000 });
    expect(database.prepare(statement).run().changes).toBe(1);
  };
  const workspaceScope = () => gateway.scope;

  for (const column of ["spec", "status", "labels", "driver_record", "runtime_record"]) {
    it(`is a sandbox that has failed and says why, beside the others: ${column}`, async () => {
      await gateway.create();
      await gateway.phase(SandboxPhase.READY);
      await gateway.create({ name: "other" });
      await gateway.phase(SandboxPhase.READY, "other");
      const value = column === "spec" || column === "status" ? "x'ffffff'" : "'{'";
      // The version goes with the content: one that was read before is not read again.
      damage(`update sandboxes set ${column} = ${value}, resource_version = resource_version + 1 where name = 'box'`);
      await gateway.restart();
      const box = await gateway.phase(SandboxPhase.ERROR);
      const ready = box.status!.conditions.find(({ type }) => type === "Ready");
      expect(ready!.message).toMatch(/record in the gateway's database is damaged \(.*delete it/);
      expect((await gateway.phase(SandboxPhase.READY, "other")).metadata!.name).toBe("other");
      const { sandboxes } = await gateway.client.listSandboxes({ workspaceScope: workspaceScope() });
      expect(sandboxes.map(({ metadata }) => metadata!.name)).toEqual(["box", "other"]);
      await gateway.client.deleteSandbox({ workspaceScope: workspaceScope(), name: "box" });
      await gateway.until(
        async () => (await gateway.client.listSandboxes({ workspaceScope: workspaceScope() })).sandboxes.length === 1,
        "it is gone",
      );
    });
  }

  it("is a provider that says so, and can be deleted", async () => {
    for (const name of ["p", "q"])
      await gateway.client.createProvider({
        workspaceScope: workspaceScope(),
        provider: { metadata: { name }, type: "generic", credentials: { TOKEN: "v" } },
      });
    damage("update providers set config = '{' where name = 'p'");
    const { providers } = await gateway.client.listProviders({ workspaceScope: workspaceScope() });
    expect(providers.map(({ metadata }) => metadata!.annotations)).toEqual([
      { "openshell.io/damaged-record": expect.stringContaining("(config)") },
      {},
    ]);
    await gateway.client.deleteProvider({ workspaceScope: workspaceScope(), name: "p" });
  });

  it("is a revision of a policy that failed, and no gateway's policy is in force in its place", async () => {
    const policy = { version: 1 };
    await gateway.client.updateConfig({ global: true, policy });
    damage("update settings set value = 'x' where key = 'policy'");
    await gateway.create();
    const { status } = await gateway.phase(SandboxPhase.ERROR);
    expect(status!.conditions.find(({ type }) => type === "Ready")!.message).toContain("database does not have it");
    damage("update policy_revisions set policy = x'ffffff' where scope = '__global__'");
    const { revisions } = await gateway.client.listSandboxPolicies({ global: true });
    expect(revisions).toMatchObject([{ version: 1, loadError: expect.stringContaining("damaged (policy)") }]);
  });
});

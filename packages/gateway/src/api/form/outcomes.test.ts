import { Code } from "@connectrpc/connect";
import { DeletionOutcome } from "@openshell/api";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, isBuilt, methodOf, refusal, rpcNames, sampleOf } from "./calls.ts";

const deletes = rpcNames.filter((rpc) => methodOf(rpc).input.fields.some(({ name }) => name === "allow_missing"));
const built = deletes.filter(isBuilt);

/** What each deletes, made under the name `x`. */
const TARGETS: Partial<Record<RpcName, (gateway: Harness) => Promise<unknown>>> = {
  deleteSandbox: (gateway) => gateway.create({ name: "x" }),
  deleteProvider: (gateway) =>
    gateway.client.createProvider({
      ...inWorkspace("default"),
      provider: { metadata: { name: "x" }, type: "generic", credentials: { TOKEN: "t" } },
    }),
};

describe("outcomes of every deletion", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  it("are of the nine that the API has", () => expect(deletes).toHaveLength(9));

  it("are tested for every one that is built", () => expect(Object.keys(TARGETS).toSorted()).toEqual(built.toSorted()));

  it.each(built)("%s: gone is COMPLETED, again is NOT_FOUND, or ALREADY_ABSENT where that is allowed", async (rpc) => {
    await TARGETS[rpc]!(gateway);
    const done = await call(gateway, rpc, sampleOf(rpc));
    expect(done.message).toMatchObject({ outcome: DeletionOutcome.COMPLETED });
    const { code, resource } = await refusal(gateway, rpc, sampleOf(rpc));
    expect([code, resource?.name]).toEqual([Code.NotFound, "x"]);
    const again = await call(gateway, rpc, sampleOf(rpc, { allowMissing: true }));
    expect(again.message).toMatchObject({ outcome: DeletionOutcome.ALREADY_ABSENT });
    if (rpc === "deleteSandbox") {
      expect(done.message!["sandboxId"]).not.toBe("");
      expect(again.message!["sandboxId"]).toBe("");
    }
  });

  it.each(built)(
    "%s: allow_missing hides no missing workspace, no empty name, and nothing that exists",
    async (rpc) => {
      const allowed = { allowMissing: true };
      expect(await refusal(gateway, rpc, sampleOf(rpc, { ...allowed, ...inWorkspace("nowhere") }))).toMatchObject({
        code: Code.NotFound,
        resource: { kind: "workspace" },
      });
      expect((await refusal(gateway, rpc, sampleOf(rpc, { ...allowed, name: "" }))).fields).toEqual(["name"]);
      await TARGETS[rpc]!(gateway);
      const { message } = await call(gateway, rpc, sampleOf(rpc, allowed));
      expect(message).toMatchObject({ outcome: DeletionOutcome.COMPLETED });
    },
  );

  it("DeleteSandbox: work that goes on is ACCEPTED with the id; deleting again is no error, and the name is free afterwards", async () => {
    await using busy = await Harness.open();
    const { metadata } = await busy.create({ name: "x" });
    let failures = 1;
    busy.driver.before = (operation) => {
      if (operation === "delete" && failures-- > 0) throw new Error("busy");
    };
    const first = await call(busy, "deleteSandbox", sampleOf("deleteSandbox"));
    expect(first.message).toMatchObject({ outcome: DeletionOutcome.ACCEPTED, sandboxId: metadata!.id });
    const again = await call(busy, "deleteSandbox", sampleOf("deleteSandbox"));
    expect(again.message).toMatchObject({ sandboxId: metadata!.id });
    expect([DeletionOutcome.COMPLETED, DeletionOutcome.ACCEPTED]).toContain(again.message!["outcome"]);
    await busy.until(
      async () => (await call(busy, "getSandbox", sampleOf("getSandbox"))).error?.code === Code.NotFound,
      "gone",
    );
    const replacement = await busy.create({ name: "x" });
    expect(replacement.metadata!.id).not.toBe(metadata!.id);
  });

  it("DeleteProvider: one in use is refused whatever is allowed to be missing", async () => {
    await TARGETS.deleteProvider!(gateway);
    await gateway.create({ name: "user", spec: { providers: ["x"] } });
    for (const allowMissing of [false, true]) {
      const { code, message } = await refusal(gateway, "deleteProvider", sampleOf("deleteProvider", { allowMissing }));
      expect([code, message]).toEqual([
        Code.FailedPrecondition,
        expect.stringMatching(/user\. Delete these sandboxes/),
      ]);
    }
  });
});

import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

describe("a change of a provider", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
    const provider = { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "first" } };
    await gateway.client.createProvider({ workspaceScope: gateway.scope, provider });
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const change = (type: string) =>
    gateway.client.updateProvider({
      workspaceScope: gateway.scope,
      provider: { metadata: { name: "p" }, type, credentials: { TOKEN: "second" } },
    });

  it("leaves the type out or repeats it, and keeps it either way (#2991)", async () => {
    for (const type of ["", "generic", "GENERIC"]) expect((await change(type)).provider?.type).toBe("generic");
    expect((await gateway.client.getProvider({ workspaceScope: gateway.scope, name: "p" })).provider?.type).toBe(
      "generic",
    );
  });

  it("names no other type", async () => {
    await expect(change("openai")).rejects.toMatchObject({
      code: Code.InvalidArgument,
      rawMessage: expect.stringContaining("provider.type"),
    });
  });
});

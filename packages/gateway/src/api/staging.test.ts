import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { Code } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { refusal, sampleOf } from "./form/calls.ts";
import { Harness } from "./testing/harness.ts";

let gateway: Harness;
beforeEach(async () => {
  gateway = await Harness.open();
});
afterEach(() => gateway[Symbol.asyncDispose]());

/** A filled slot: its token, and what is in the staging folder. */
async function staged() {
  const slot = await gateway.client.beginRootfsTarStaging({
    workspaceScope: gateway.scope,
    fileName: "x.tar",
    sizeBytes: 4n,
  });
  writeFileSync(slot.uploadPath, "four");
  const folder = dirname(dirname(dirname(slot.uploadPath)));
  return { token: slot.stagingToken, left: () => (existsSync(folder) ? readdirSync(folder) : []) };
}

const withToken = (token: string, more: Readonly<Record<string, string>> = {}) => ({
  spec: { template: { driverConfig: { local: { rootfs_tar_staging_token: token, ...more } } } },
});

describe("a sandbox of a staged archive", () => {
  it("takes it, does not show the token, and leaves nothing once it runs", async () => {
    const { token, left } = await staged();
    const { spec } = await gateway.create(withToken(token));
    expect(spec!.template!.driverConfig).toEqual({ local: {} });
    await gateway.phase(SandboxPhase.READY);
    await gateway.until(() => left().length === 0, "the archive's removal");
  });

  it("is created after a crash of the gateway, from the archive that it took", async () => {
    const { token, left } = await staged();
    gateway.driver.before = () => {
      throw new Error("not yet");
    };
    const { metadata } = await gateway.create(withToken(token));
    expect(left()).toEqual([`of-${metadata!.id}`]);
    await gateway.restart();
    expect(left()).toEqual([`of-${metadata!.id}`]);
    gateway.driver.before = () => {};
    await gateway.phase(SandboxPhase.READY);
    await gateway.until(() => left().length === 0, "the archive's removal");
  });

  it("that is deleted before it was ever created takes its archive along", async () => {
    const { token, left } = await staged();
    gateway.driver.before = (operation) => {
      if (operation === "create") throw new Error("not yet");
    };
    await gateway.create(withToken(token));
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.until(() => left().length === 0, "the archive's removal");
  });

  it("that is refused has used up token and archive, unless its request was wrong in form", async () => {
    await gateway.create();
    const { token, left } = await staged();
    const request = sampleOf("createSandbox", { name: "box", ...withToken(token) });
    const form = await refusal(gateway, "createSandbox", { ...request, labels: { "": "x" } });
    expect([form.code, left()]).toEqual([Code.InvalidArgument, [expect.stringMatching(/^slot-/)]]);
    expect((await refusal(gateway, "createSandbox", request)).code).toBe(Code.AlreadyExists);
    expect(left()).toEqual([]);
    const again = await refusal(gateway, "createSandbox", { ...request, name: "other" });
    expect(again).toMatchObject({ code: Code.FailedPrecondition, message: expect.stringContaining("used before") });
  });

  it("cannot have another root as well, and tokens have one form", async () => {
    const field = "spec.template.driver_config.local.rootfs_tar_staging_token";
    const { token } = await staged();
    for (const config of [withToken(token, { root: "/x" }), withToken("short"), withToken(`${token}\0`)]) {
      const refused = await refusal(gateway, "createSandbox", sampleOf("createSandbox", { name: "box", ...config }));
      expect([refused.code, refused.fields]).toEqual([Code.InvalidArgument, [field]]);
    }
  });
});

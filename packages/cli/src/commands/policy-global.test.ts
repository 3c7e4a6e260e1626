import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { type CommandOptions, runCommandLine } from "../testing/surroundings.ts";

let gateway: FakeGateway;
let file: string;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  file = join(gateway.folder, "policy.yaml");
  writeFileSync(file, "version: 1\n");
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "abcdefabcdefabcdef", deleted: true } });
});
afterEach(() => gateway[Symbol.asyncDispose]());

const run = (argv: string[], options: CommandOptions = {}) =>
  runCommandLine(argv, { ...options, env: { ...gateway.env, ...options.env } });
const sent = () => gateway.calls.map(({ method, message }) => [method, message]);

test("policy set --global: in every sandbox, after a confirmation", async () => {
  const line = ["policy", "set", "--global", "--policy", file];
  expect(await run(line)).toMatchObject({ code: 2, stderr: expect.stringContaining("Add --yes") });
  expect((await run([...line, "--wait"])).code).toBe(2);
  expect((await run(["policy", "set", "dev", "--global", "--policy", file, "--yes"])).stderr).toMatch(
    /exclude each other/,
  );
  expect(await run(line, { interactive: true, stdin: "\n" })).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("Nothing was changed."),
  });
  expect(sent()).toEqual([]);
  expect(await run([...line, "--yes"])).toMatchObject({
    code: 0,
    stderr: "✓ Global policy version 2 stored for every sandbox (hash abcdefabcdef).\n",
  });
  expect(sent()).toEqual([["UpdateConfig", { global: true, policy: { version: 1 } }]]);
});

test("policy delete: the gateway's alone", async () => {
  expect((await run(["policy", "delete"])).stderr).toMatch(/only that of the gateway can be removed/);
  expect((await run(["policy", "delete", "--global"])).code).toBe(2);
  expect(sent()).toEqual([]);
  expect((await run(["policy", "delete", "--global", "--yes"])).stderr).toMatch(/^✓ Deleted the global policy/);
  expect(sent()).toEqual([["UpdateConfig", { global: true, settingKey: "policy", deleteSetting: true }]]);
  gateway.answers.set("UpdateConfig", { message: {} });
  expect(await run(["policy", "delete", "--global", "--yes"])).toMatchObject({
    code: 0,
    stderr: "! Nothing to delete: there is no global policy.\n",
  });
});

test("policy get and list --global: revisions of the gateway", async () => {
  const revision = { version: 2, policyHash: "abc", status: "POLICY_STATUS_LOADED", policy: { version: 1 } };
  gateway.answers.set("GetSandboxPolicyStatus", { message: { activeVersion: 2, revision } });
  gateway.answers.set("ListSandboxPolicies", { message: { revisions: [revision] } });
  const got = await run(["policy", "get", "--global"]);
  expect(got.stdout).toMatch(/^Version: 2\nHash: abc\nStatus: loaded\nActive: 2\n/);
  const json = JSON.parse((await run(["policy", "get", "--global", "--rev", "2", "-o", "json"])).stdout);
  expect(json).toMatchObject({ scope: "global", active_version: 2, version: 2, policy: { version: 1 } });
  expect(json.sandbox).toBeUndefined();
  expect((await run(["policy", "list", "--global"])).stdout).toContain("loaded");
  expect(sent()).toEqual([
    ["GetSandboxPolicyStatus", { global: true, version: 0 }],
    ["GetSandboxPolicyStatus", { global: true, version: 2 }],
    ["ListSandboxPolicies", { global: true, pageSize: 100, pageToken: "" }],
  ]);
  for (const command of ["get", "list"]) expect((await run(["policy", command, "dev", "--global"])).code).toBe(2);
});

test("policy get says that the gateway's policy is wanted, and whether the sandbox has it in force", async () => {
  const message = { version: 3, policySource: "POLICY_SOURCE_GLOBAL", globalPolicyVersion: 2, configRevision: "11" };
  gateway.answers.set("GetSandboxConfig", { message });
  const shown = async (state: string, configRevision: string): Promise<string | undefined> => {
    const configurationAdmission = { state: `CONFIGURATION_ADMISSION_STATE_${state}`, configRevision };
    const status = { phase: "SANDBOX_PHASE_READY", configurationAdmission };
    gateway.answers.set("GetSandbox", { message: { sandbox: { metadata: { name: "dev" }, status } } });
    return /^In force: .*$/m.exec((await run(["policy", "get", "dev"])).stdout)?.[0];
  };
  expect(await shown("ACCEPTED", "10")).toBe("In force: not yet");
  expect(await shown("ACCEPTED", "11")).toBe("In force: yes");
  const { stdout } = await run(["policy", "get", "dev"]);
  expect(stdout).toMatch(/^Source: global$/m);
  expect(stdout).toMatch(/^Global: 2$/m);
});

import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { type CommandOptions, runCommandLine } from "../testing/surroundings.ts";
import type { Json } from "../transport/unary.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  gateway.answers.set("UpdateConfig", { message: { settingsRevision: "3", deleted: true } });
});
afterEach(() => gateway[Symbol.asyncDispose]());

const run = (argv: string[], options: CommandOptions = {}) =>
  runCommandLine(argv, { ...options, env: { ...gateway.env, ...options.env } });
const sent = (): readonly Json[] =>
  gateway.calls.filter(({ method }) => method === "UpdateConfig").map(({ message }) => message);
const scope = { workspaceScope: { workspace: "default" }, sandbox: "dev" };

test("get: of a sandbox, with where each value comes from", async () => {
  const message = {
    version: 1,
    policyHash: "abc",
    policySource: "POLICY_SOURCE_SANDBOX",
    configRevision: "17",
    settingsRevision: "2",
    settings: {
      proposal_approval_mode: { value: { stringValue: "auto" }, scope: "SETTING_SCOPE_SANDBOX" },
      ocsf_json_enabled: { value: { boolValue: false }, scope: "SETTING_SCOPE_GLOBAL" },
      providers_v2_enabled: {},
    },
  };
  gateway.answers.set("GetSandboxConfig", { message });
  expect((await run(["settings", "get", "dev"])).stdout).toBe(
    "KEY                     VALUE    SCOPE\n" +
      "ocsf_json_enabled       false    global\n" +
      "proposal_approval_mode  auto     sandbox\n" +
      "providers_v2_enabled    <unset>  unset\n",
  );
  const facts = {
    sandbox: "dev",
    workspace: "default",
    config_revision: "17",
    policy_source: "sandbox",
    policy_hash: "abc",
    settings_revision: "2",
    settings: {
      ocsf_json_enabled: { value: "false", scope: "global" },
      proposal_approval_mode: { value: "auto", scope: "sandbox" },
      providers_v2_enabled: { value: "<unset>", scope: "unset" },
    },
  };
  for (const format of [["--json"], ["-o", "json"]])
    expect(JSON.parse((await run(["settings", "get", "dev", ...format])).stdout)).toEqual(facts);
  expect((await run(["settings", "get", "dev", "-o", "yaml"])).stdout).toContain("scope: global");
});

test("set and delete say what a sandbox has not taken up yet", async () => {
  gateway.answers.set("GetSandboxConfig", { message: { configRevision: "8" } });
  const judged = (configRevision: string): void => {
    const configurationAdmission = { state: "CONFIGURATION_ADMISSION_STATE_ACCEPTED", configRevision };
    const status = { phase: "SANDBOX_PHASE_READY", configurationAdmission };
    gateway.answers.set("GetSandbox", { message: { sandbox: { metadata: { name: "dev" }, status } } });
  };
  const set = ["settings", "set", "dev", "--key", "ocsf_json_enabled", "--value", "on"];
  const remove = ["settings", "delete", "dev", "--key", "ocsf_json_enabled"];
  for (const command of [set, remove]) {
    judged("7");
    expect((await run(command)).stderr).toMatch(/^✓ .*\n· In force: not yet\.\n {2}next: /);
    judged("8");
    expect(await run(command)).toMatchObject({ code: 0, stderr: expect.not.stringContaining("In force") });
  }
});

test("get --global: of the gateway, without a sandbox", async () => {
  const message = {
    settingsRevision: "4",
    settings: { ocsf_json_enabled: { boolValue: true }, providers_v2_enabled: {} },
  };
  gateway.answers.set("GetGatewayConfig", { message });
  expect((await run(["settings", "get", "--global"])).stdout).toBe(
    "KEY                   VALUE\nocsf_json_enabled     true\nproviders_v2_enabled  <unset>\n",
  );
  expect(JSON.parse((await run(["settings", "get", "--global", "--json"])).stdout)).toEqual({
    scope: "global",
    settings_revision: "4",
    settings: { ocsf_json_enabled: "true", providers_v2_enabled: "<unset>" },
  });
  const both = await run(["settings", "get", "dev", "--global"]);
  expect([both.code, both.stdout]).toEqual([2, ""]);
  expect(both.stderr).toContain("exclude each other");
});

test("set and delete: of a sandbox", async () => {
  const words = ["1", "TRUE", "yes", "y", "on", "0", "false", "No", "n", "off"];
  for (const value of words) {
    const { code, stderr } = await run(["settings", "set", "dev", "--key", "ocsf_json_enabled", "--value", value]);
    expect([code, stderr]).toEqual([
      0,
      expect.stringMatching(/^✓ Set sandbox setting ocsf_json_enabled=(true|false) of dev \(revision 3\)\.\n$/),
    ]);
  }
  expect(sent()).toEqual(
    words.map((_, n) => ({ ...scope, settingKey: "ocsf_json_enabled", settingValue: { boolValue: n < 5 } })),
  );
  const mode = await run(["settings", "set", "dev", "--key", "proposal_approval_mode", "--value", "auto"]);
  expect(mode.stderr).toContain("! proposal_approval_mode: nothing in this version acts on it.");
  expect(sent().at(-1)).toMatchObject({ settingValue: { stringValue: "auto" } });
  const gone = await run(["settings", "delete", "dev", "--key", "ocsf_json_enabled"]);
  expect([gone.code, gone.stderr]).toEqual([0, "✓ Deleted sandbox setting ocsf_json_enabled of dev.\n"]);
  expect(sent().at(-1)).toEqual({ ...scope, settingKey: "ocsf_json_enabled", deleteSetting: true });
  gateway.answers.set("UpdateConfig", { message: { settingsRevision: "3" } });
  const none = await run(["settings", "delete", "dev", "--key", "ocsf_json_enabled"]);
  expect([none.code, none.stderr]).toEqual([
    0,
    "! Nothing to delete: sandbox setting ocsf_json_enabled of dev is not set.\n",
  ]);
});

test("of the gateway are changed after a confirmation only", async () => {
  const set = ["settings", "set", "--global", "--key", "ocsf_json_enabled", "--value", "true"];
  const unasked = await run(set);
  expect([unasked.code, unasked.stderr]).toEqual([
    2,
    expect.stringMatching(/needs a confirmation\n {2}next: Add --yes/),
  ]);
  for (const stdin of ["", "\n", "n\n", "yesterday\n", "x".repeat(1000)]) {
    const { code, stderr } = await run(set, { interactive: true, stdin });
    expect([code, stderr]).toEqual([1, "Set ocsf_json_enabled=true in every sandbox? [y/N] ! Nothing was changed.\n"]);
  }
  expect(sent()).toEqual([]);
  const agreed = await run(set, { interactive: true, stdin: "y\n" });
  expect([agreed.code, agreed.stderr]).toEqual([
    0,
    expect.stringContaining("✓ Set global setting ocsf_json_enabled=true (revision 3).\n"),
  ]);
  expect((await run([...set, "--yes"])).code).toBe(0);
  const remove = ["settings", "delete", "--global", "--key", "ocsf_json_enabled"];
  expect((await run(remove)).code).toBe(2);
  expect((await run([...remove, "--yes"])).stderr).toBe("✓ Deleted global setting ocsf_json_enabled.\n");
  expect(sent()).toEqual([
    { global: true, settingKey: "ocsf_json_enabled", settingValue: { boolValue: true } },
    { global: true, settingKey: "ocsf_json_enabled", settingValue: { boolValue: true } },
    { global: true, settingKey: "ocsf_json_enabled", deleteSetting: true },
  ]);
});

test("what is no setting, or no value of it, is refused before anything is sent", async () => {
  for (const [key, value, next] of [
    ["colour", "red", "Use one of: agent_policy_proposals_enabled, ocsf_json_enabled"],
    ["ocsf_json_enabled", "maybe", "Write true or false"],
    ["proposal_approval_mode", "true", "Use one of: manual, auto"],
  ] as const) {
    const { code, stderr } = await run(["settings", "set", "dev", "--key", key, "--value", value]);
    expect([code, stderr]).toEqual([2, expect.stringContaining(next)]);
  }
  expect((await run(["settings", "set", "dev", "--value", "true"])).stderr).toContain("--key is missing");
  expect((await run(["settings", "set", "dev", "--key", "ocsf_json_enabled"])).stderr).toContain("--value is missing");
  expect(gateway.calls).toEqual([]);
});

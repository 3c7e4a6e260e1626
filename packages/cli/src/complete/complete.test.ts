import { afterEach, beforeEach, expect, test } from "vitest";
import { everything } from "../commands/index.ts";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(() => gateway[Symbol.asyncDispose]());

async function complete(...words: string[]): Promise<string[]> {
  const { code, stdout, stderr } = await runCommandLine(["__complete", "bash", ...words], { env: gateway.env });
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return stdout.split("\n").slice(0, -1);
}
const sandboxes = (...names: string[]) => ({
  message: { sandboxes: names.map((name) => ({ metadata: { name }, status: { phase: "SANDBOX_PHASE_READY" } })) },
});

test("every command and every option is known, from the declarations that parsing uses", async () => {
  for (const item of everything()) {
    expect(await complete(item.name)).toContain(item.name);
    const entries = "commands" in item ? item.commands : [item];
    if ("commands" in item)
      expect(await complete(item.name, "")).toEqual([...new Set(entries.map(({ name }) => name.split(" ")[0]))]);
    for (const entry of entries) {
      const { spec } = await entry.load();
      const options = spec.flags.filter(({ hidden }) => hidden !== true).map(({ long }) => `--${long}`);
      expect(await complete(...spec.path, "--")).toEqual(expect.arrayContaining(options));
    }
  }
  expect(await complete("san")).toEqual(["sandbox"]);
  expect(await complete("sb", "conn")).toEqual(["connect"]);
  expect(await complete("nothing", "")).toEqual([]);
  expect(await complete("sandbox", "nothing", "")).toEqual([]);
});

test("options: values they take, those given already, those they exclude", async () => {
  expect(await complete("sandbox", "list", "-o", "")).toEqual(["table", "yaml", "json"]);
  expect(await complete("sandbox", "list", "--output=j")).toEqual(["--output=json"]);
  // Bash parts words at "=".
  expect(await complete("sandbox", "list", "--output", "=", "j")).toEqual(["json"]);
  expect(await complete("sandbox", "list", "--output", "=")).toEqual(["table", "yaml", "json"]);
  expect(await complete("sandbox", "list", "--ids", "--n")).toEqual([]);
  expect(await complete("sandbox", "list", "--l")).toEqual(["--limit"]);
  expect(await complete("sandbox", "list", "--limit", "")).toEqual([]);
  expect(await complete("sandbox", "list", "--limit", "3", "--l")).toEqual([]);
  expect(await complete("sandbox", "create", "--env", "A=1", "--en")).toEqual(["--env"]);
  expect(await complete("completions", "")).toEqual(["bash", "zsh", "fish"]);
  expect(await complete("policy", "set", "--policy", "")).toEqual(["files"]);
  expect(await complete("policy", "validate", "")).toEqual(["files"]);
  expect(await complete("run", "make", "--")).toEqual(["files"]);
  expect(await complete("sandbox", "exec", "dev", "--", "l")).toEqual(["files"]);
});

test("names that exist are offered, of the gateway and workspace that the line names", async () => {
  gateway.answers.set("ListSandboxes", sandboxes("dev", "demo", "other"));
  gateway.answers.set("ListProviders", { message: { providers: [{ metadata: { name: "model" }, type: "generic" }] } });
  gateway.answers.set("ListWorkspaces", { message: { workspaces: [{ metadata: { name: "team" } }] } });
  gateway.answers.set("ListSandboxPolicies", {
    message: { revisions: [{ version: 12, status: "POLICY_STATUS_LOADED" }] },
  });
  gateway.answers.set("GetSandboxConfig", { message: { policy: { networkPolicies: { api: {}, web: {} } } } });
  expect(await complete("sandbox", "connect", "de")).toEqual(["dev", "demo"]);
  expect(await complete("logs", "")).toEqual(["dev", "demo", "other"]);
  expect(await complete("sandbox", "delete", "dev", "d")).toEqual(["demo"]);
  expect(await complete("sandbox", "get", "dev", "d")).toEqual([]);
  expect(await complete("sandbox", "exec", "-n", "o")).toEqual(["other"]);
  expect(await complete("run", "--provider", "")).toEqual(["model"]);
  expect(await complete("provider", "get", "")).toEqual(["model"]);
  expect(await complete("--workspace", "")).toEqual(["team"]);
  expect(await complete("policy", "get", "dev", "--rev", "")).toEqual(["12"]);
  expect(await complete("policy", "update", "dev", "--remove-rule", "a")).toEqual(["api"]);
  expect(gateway.calls.at(-1)?.message).toMatchObject({ name: "dev" });
  expect(await complete("-g", "")).toEqual(["openshell"]);
  await complete("--workspace", "blue", "logs", "");
  expect(gateway.calls.at(-1)?.message).toMatchObject({ workspaceScope: { workspace: "blue" }, pageSize: 1000 });
  const zsh = await runCommandLine(["__complete", "zsh", "logs", "dev"], { env: gateway.env });
  expect(zsh.stdout).toBe("dev\tReady\n");
});

test("nothing that a shell could take for more than a name is offered", async () => {
  const hostile = [
    "$(touch x)",
    "`id`",
    "a b",
    "a;b",
    "a\nb",
    "\u001b[2J",
    "-rf",
    "../x",
    "a'b",
    'a"b',
    "a\\b",
    "*",
    "~",
    "ü",
  ];
  gateway.answers.set("ListSandboxes", sandboxes(...hostile, "good"));
  expect(await complete("logs", "")).toEqual(["good"]);
  const odd = { metadata: { name: "good" }, status: { phase: "SANDBOX_PHASE_\u001b[2J" } };
  gateway.answers.set("ListSandboxes", { message: { sandboxes: [odd] } });
  expect(await complete("logs", "")).toEqual([]);
});

test("a gateway that does not answer costs little time and is not started", async () => {
  gateway.answers.set("ListSandboxes", { silence: true });
  const started = performance.now();
  expect(await complete("logs", "")).toEqual([]);
  expect(performance.now() - started).toBeLessThan(5_000);
  gateway.answers.set("ListSandboxes", { error: { code: "unavailable", message: "busy" }, status: 503 });
  expect(await complete("logs", "")).toEqual([]);
  const nowhere = { ...gateway.env, XDG_RUNTIME_DIR: `${gateway.folder}/nothing` };
  expect(await runCommandLine(["__complete", "bash", "logs", ""], { env: nowhere })).toEqual({
    code: 0,
    stdout: "",
    stderr: "",
  });
  expect(await complete("-g", "no-such-gateway", "logs", "")).toEqual([]);
  expect(await complete()).toContain("sandbox");
});

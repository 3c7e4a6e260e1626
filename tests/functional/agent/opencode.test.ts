import { cpSync, lstatSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { RunResult } from "../../support/command.ts";
import { runOk } from "../../support/command.ts";
import { marker, type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { expectPerMode, mode } from "../../support/modes.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { requiredProgram } from "../../support/programs.ts";
import { filesWithSecrets, findIn, newSecret } from "../../support/secrets.ts";
import { ModelStandIn } from "./model-stand-in.ts";

/**
 * The product's main job: an agent that was not made for OpenShell works in a sandbox as examples/opencode says, under
 * that example's own policy and configuration. Only the name api.example.com leads to a stand-in.
 */

const example = resolve(import.meta.dirname, "../../../examples/opencode");
const AGENT_TIMEOUT_MS = 120_000;

const contents = marker("written by the agent");
const built = marker("built by the agent");
const key = newSecret("sk-model");

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;
let other: TestHost;
let host: TestHost;
let repository: string;
let model: ModelStandIn;
let result: RunResult;
let logs: string;

const git = (...argv: string[]) =>
  runOk(["git", ...argv], { cwd: repository, env: { HOME: openshell.home.path(), GIT_CONFIG_NOSYSTEM: "1" } });

/** The commands of the example's README, with the program where these tests have it. */
const work = (name: string, task: string): Promise<RunResult> =>
  openshell.run(
    [
      ...["run", "--name", name, "--keep", "--policy", openshell.home.path("opencode/policy.yaml")],
      ...["--provider", "model", "--volume", `${requiredProgram("opencode")}:/opt/opencode/opencode:ro`],
      ...["--volume", `${openshell.home.path("opencode/opencode.json")}:/sandbox/.config/opencode/opencode.json:ro`],
      ...["--volume", `${repository}:/work`, "--", "/opt/opencode/opencode", "run", task],
    ],
    { cwd: repository, timeoutMs: AGENT_TIMEOUT_MS },
  );

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  model = new ModelStandIn(key, [
    { tool: "write", arguments: { filePath: "/work/hello.txt", content: `${contents}\n` } },
    {
      tool: "bash",
      arguments: {
        command: `mkdir -p out && echo '${built}' > out/result.txt && env > out/env.txt`,
        description: "Builds",
      },
    },
    {
      tool: "bash",
      arguments: { command: `curl -sS https://other.example.net/${marker("secret-path")}`, description: "Asks" },
    },
    { text: "The file is written and the build is done." },
  ]);
  host = await net.host("api.example.com", {
    handler: (request, response, context) => model.handler(request, response, context),
  });
  other = await net.host("other.example.net");
  openshell = TestOpenShell.create(net);
  repository = openshell.home.path("project");
  mkdirSync(repository);
  openshell.home.write("project/README.md", "A project\n", 0o644);
  await git("init", "--quiet", "--initial-branch", "main");
  await git("add", "--all");
  await git("-c", "user.name=Test", "-c", "user.email=test@example.com", "commit", "--quiet", "--message", "First");
  // The example as a person has it: files of their own.
  cpSync(example, openshell.home.path("opencode"), { recursive: true });

  await openshell.ok(["provider", "create", "--name", "model", "--type", "generic", "--credential", "MODEL_API_KEY"], {
    env: { MODEL_API_KEY: key },
    timeoutMs: 60_000,
  });
  result = await work("agent", "Write hello.txt, build, and ask the other host.");
  logs = await openshell.ok(["logs", "agent", "-n", "1000"]);
}, 240_000);

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

describe("OpenCode, unmodified, in a sandbox", () => {
  test("does its task and ends with what the model said last", () => {
    expect(`${result.stdout}\n${result.stderr}`).toContain("The file is written and the build is done.");
    expectPerMode(result.exitCode, { root: 0, user: 0 });
  });

  test("offered its tools to the model and called them", () => {
    expect(model.offered).toEqual(expect.arrayContaining(["write", "bash"]));
    expect(model.results.map(({ tool }) => tool)).toEqual(["write", "bash", "bash"]);
  });

  test("the model received the key, in every request, and the agent held only a placeholder", () => {
    expect(model.keys.length).toBeGreaterThanOrEqual(4);
    expect(new Set(model.keys)).toEqual(new Set([`Bearer ${key}`]));
    const environment = readFileSync(join(repository, "out/env.txt"), "utf8");
    expect(environment).toMatch(/^MODEL_API_KEY=openshell:resolve:/m);
    expect(environment).not.toContain(key);
  });

  test("another host is refused, and the agent is told why", () => {
    const told = model.results[2]!.output;
    expect(told).toContain("other.example.net:443");
    expect(told).toContain("not permitted by policy");
    expect(other.received().connections).toEqual([]);
    expect(logs).toMatch(/DENIED .*curl.* -> other\.example\.net:443/);
  });

  test("nothing but the model API was reached, and only as the policy says", () => {
    const { requests } = host.received();
    expect(new Set(requests.map(({ method, target }) => `${method} ${target}`))).toEqual(
      new Set(["POST /v1/chat/completions"]),
    );
  });

  test("what its tools wrote is in the repository and belongs to the caller", async () => {
    expect(readFileSync(join(repository, "hello.txt"), "utf8")).toBe(`${contents}\n`);
    expect(readFileSync(join(repository, "out/result.txt"), "utf8")).toBe(`${built}\n`);
    for (const name of ["hello.txt", "out", "out/result.txt", "out/env.txt"]) {
      const { uid, gid } = statSync(join(repository, name));
      expect({ name, uid, gid }, `as ${mode}`).toEqual({ name, uid: process.getuid!(), gid: process.getgid!() });
    }
    expect(await git("status", "--porcelain")).toBe("?? hello.txt\n?? out/\n");
    await git("add", "--all");
    await git("-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "--quiet", "--message", "Agent");
  });

  test("the key is in no file of the run, no log and no output", () => {
    expect(findIn(result.stdoutBytes)).toBeUndefined();
    expect(findIn(result.stderrBytes)).toBeUndefined();
    expect(findIn(Buffer.from(logs))).toBeUndefined();
    for (const body of model.bodies) expect(body).not.toContain(key);
    const { folder } = openshell.home;
    expect(readdirSync(folder).length).toBeGreaterThan(3);
    expect(filesWithSecrets([folder])).toEqual([]);
  });

  test("its program was not changed", () => {
    const { mtimeMs, ctimeMs } = lstatSync(requiredProgram("opencode"));
    expect(Math.max(mtimeMs, ctimeMs)).toBeLessThan(Date.now() - result.durationMs);
  });

  test("the sandbox goes when it is deleted", async () => {
    await openshell.ok(["sandbox", "delete", "agent"]);
    expect(await openshell.json(["sandbox", "list"])).toMatchObject({ sandboxes: [] });
  });

  test("a placeholder does not even leave in a body: the agent is told instead", { timeout: 150_000 }, async () => {
    model = new ModelStandIn(key, [{ tool: "bash", arguments: { command: "env", description: "Shows variables" } }]);
    const printed = await work("printer", "Print your environment.");
    expect(printed.stdout + printed.stderr).toContain("request body contains a credential placeholder");
    for (const body of model.bodies) expect(body).not.toContain("openshell:resolve");
    expect(model.results).toEqual([]);
    await openshell.ok(["sandbox", "delete", "printer"]);
  });
});

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { type CommandOptions, runCommandLine } from "../testing/surroundings.ts";
import type { Json } from "../transport/unary.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(() => gateway[Symbol.asyncDispose]());

const run = (argv: string[], options: CommandOptions = {}) =>
  runCommandLine(argv, { ...options, env: { ...gateway.env, ...options.env } });
const lastCall = (method: string): Json | undefined =>
  gateway.calls.findLast((call) => call.method === method)?.message;
const stdoutOf = async (...argv: string[]): Promise<string> => {
  const { code, stdout, stderr } = await run(argv);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return stdout;
};

const sandbox = (name: string, phase: string, more: Json = {}): Json => ({
  metadata: {
    id: `id-${name}`,
    name,
    workspace: "default",
    createdTime: "2026-03-01T12:00:00.123Z",
    resourceVersion: "4",
    labels: { team: "blue" },
  },
  spec: { command: ["sleep", "infinity"], providers: ["model"] },
  status: { phase: `SANDBOX_PHASE_${phase}`, ...more },
});

test("sandbox list: table, names, ids, JSON, YAML and the next page", async () => {
  const sandboxes = [sandbox("dev", "READY"), sandbox("a\u001b[2Jb", "ERROR")];
  gateway.answers.set("ListSandboxes", { message: { sandboxes } });
  expect(await stdoutOf("sandbox", "list")).toBe(
    "NAME       CREATED              PHASE\n" +
      "dev        2026-03-01 12:00:00  Ready\n" +
      "a\\x1b[2Jb  2026-03-01 12:00:00  Error\n",
  );
  expect(lastCall("ListSandboxes")).toMatchObject({ workspaceScope: { workspace: "default" }, pageSize: 100 });
  expect(await stdoutOf("sandbox", "list", "--names")).toBe("dev\na\\x1b[2Jb\n");
  expect(await stdoutOf("sandbox", "list", "--ids")).toBe("id-dev\nid-a\\x1b[2Jb\n");
  const json = JSON.parse(await stdoutOf("sandbox", "list", "-o", "json"));
  expect(json.next_page_token).toBe("");
  expect(json.sandboxes[0]).toMatchObject({
    id: "id-dev",
    name: "dev",
    phase: "Ready",
    resource_version: 4,
    created_at: "2026-03-01T12:00:00.123Z",
    labels: { team: "blue" },
  });
  expect(await stdoutOf("sandbox", "list", "-o", "yaml")).toMatch(/^sandboxes:\n {2}- id: id-dev\n/);
  gateway.answers.set("ListSandboxes", { message: { sandboxes: [], nextPageToken: "tok" } });
  const { stdout, stderr } = await run([
    "sandbox",
    "list",
    "--all-workspaces",
    "--page-size",
    "1",
    "--page-token",
    "t",
  ]);
  expect({ stdout, stderr }).toEqual({ stdout: "No sandboxes found.\n", stderr: "more: --page-token tok\n" });
  expect(lastCall("ListSandboxes")).toMatchObject({
    workspaceScope: { allWorkspaces: {} },
    pageSize: 1,
    pageToken: "t",
  });
});

test("sandbox delete: outcomes, several names, and the status after a failure", async () => {
  gateway.answers.set("DeleteSandbox", (message) => {
    if (message["name"] === "bad") return { error: { code: "permission_denied", message: "not yours" }, status: 403 };
    const outcome =
      message["name"] === "gone" ? "ALREADY_ABSENT" : message["name"] === "slow" ? "ACCEPTED" : "COMPLETED";
    return { message: { outcome: `DELETION_OUTCOME_${outcome}` } };
  });
  const good = await run(["sandbox", "delete", "a", "gone", "slow"]);
  expect(good).toMatchObject({ code: 0 });
  expect(good.stderr).toBe(
    "✓ Deleted sandbox a.\n! Sandbox gone does not exist.\n✓ Deletion of sandbox slow was accepted and goes on.\n",
  );
  const bad = await run(["sandbox", "delete", "bad", "a"]);
  expect(bad.code).toBe(1);
  expect(bad.stderr).toContain("bad: error: not yours\n  next: ");
  expect(bad.stderr).toContain("✓ Deleted sandbox a.");
  expect((await run(["sandbox", "delete"])).code).toBe(2);
  expect((await run(["sandbox", "delete", "--all", "x"])).code).toBe(2);
});

test("status says what is reached and how, also when nothing is", async () => {
  gateway.answers.set("Health", { message: { status: "SERVICE_STATUS_HEALTHY", version: "9.9.9" } });
  gateway.answers.set("GetCurrentUser", { message: { subject: "uid:1", identityProvider: "local", roles: ["admin"] } });
  const text = await stdoutOf("status");
  expect(text).toContain(`  Server: ${gateway.socket}\n  Status: Connected\n  Authentication: Authenticated\n`);
  expect(text).toContain("  Version: 9.9.9\n  Health: healthy\n");
  expect(JSON.parse(await stdoutOf("status", "-o", "json"))).toMatchObject({
    gateway: "openshell",
    status: "connected",
    authentication: { status: "authenticated", provider: "local" },
    version: "9.9.9",
  });
  const nowhere = join(gateway.folder, "nothing");
  const away = await run(["status", "-o", "json"], { env: { XDG_RUNTIME_DIR: nowhere } });
  expect(away.code).toBe(0);
  expect(JSON.parse(away.stdout)).toMatchObject({ status: "disconnected", authentication: { status: "unverified" } });
});

test("errors of the gateway are shown with every violation, escaped, and a next step", async () => {
  gateway.answers.set("ListSandboxes", { error: { code: "unavailable", message: "busy \u001b[31m" }, status: 503 });
  expect(await run(["sandbox", "list"])).toEqual({
    code: 1,
    stdout: "",
    stderr: "error: busy \\x1b[31m\n  next: Run `openshell status`, and try again\n  code: unavailable\n",
  });
  gateway.answers.set("ListSandboxes", {
    error: { code: "not_found", message: 'no workspace "x". Create it first' },
    status: 404,
  });
  expect((await run(["sandbox", "list"])).stderr).toBe('error: no workspace "x". Create it first\n  code: not_found\n');
});

test("provider create sends values and never prints them", async () => {
  gateway.answers.set("CreateProvider", (message) => ({
    message: { provider: { ...(message["provider"] as Json), credentials: { A_KEY: "REDACTED" } } },
  }));
  const argv = ["provider", "create", "--name", "m", "--type", "generic"];
  const sent = () => (lastCall("CreateProvider")?.["provider"] as Json | undefined)?.["credentials"];
  const secret = "s3cr3t-value";
  const outcomes = [
    await run([...argv, "--credential", `A_KEY=${secret}`, "--config", "url=x"]),
    await run([...argv, "--credential", "A_KEY"], { env: { A_KEY: secret } }),
    await run([...argv, "--credential", "A_KEY=-"], { stdin: `${secret}\n` }),
  ];
  for (const outcome of outcomes)
    expect(outcome).toEqual({ code: 0, stdout: "", stderr: "✓ Created provider m with A_KEY.\n" });
  expect(gateway.calls).toHaveLength(3);
  for (const call of gateway.calls)
    expect((call.message["provider"] as Json)["credentials"]).toEqual({ A_KEY: secret });
  expect(sent()).toEqual({ A_KEY: secret });
  const wrong = [
    await run([...argv, "--credential", "A_KEY"]),
    await run([...argv, "--credential", `1bad=${secret}`]),
    await run([...argv, "--credential", `A_KEY=${secret}`, "--credential", `A_KEY=${secret}`]),
    await run([...argv, "--credential", "A_KEY=-"], { stdin: "" }),
    await run(argv),
  ];
  for (const outcome of wrong) {
    expect(outcome.code).not.toBe(0);
    expect(outcome.stderr).not.toContain(secret);
  }
});

test("policy validate reports every problem with its place", async () => {
  const file = join(gateway.folder, "policy.yaml");
  writeFileSync(
    file,
    "version: 1\nnetwork_policies:\n  a:\n    endpoints:\n      - host: x.example.com\n        prot: 443\n    binares: []\n",
  );
  const { code, stdout, stderr } = await run(["policy", "validate", file]);
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  expect(stderr).toContain(`${file}:6:9: `);
  expect(stderr).toContain(`${file}:7:5: `);
  const json = JSON.parse((await run(["policy", "validate", file, "-o", "json"])).stdout);
  expect(json.valid).toBe(false);
  expect(json.violations.length).toBeGreaterThanOrEqual(2);
  writeFileSync(file, "version: 1\n");
  expect(await run(["policy", "validate", file])).toMatchObject({
    code: 0,
    stderr: `✓ ${file} is valid: 0 network rules.\n`,
  });
  expect((await run(["policy", "validate", "/no/such.yaml"])).stderr).toContain("does not exist");
  expect(gateway.calls).toEqual([]);
});

test("policy explain judges a file without a gateway", async () => {
  const file = join(gateway.folder, "policy.yaml");
  const rules = `version: 1
network_policies:
  model:
    endpoints:
      - host: api.example.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
          - allow: { method: POST, path: /v1/chat/completions }
    binaries: [{ path: "**" }]
`;
  writeFileSync(file, rules);
  const explain = (...argv: string[]) =>
    run(["policy", "explain", "--policy", file, "--host", "api.example.com", ...argv]);
  expect(await explain()).toMatchObject({
    code: 0,
    stdout: expect.stringContaining("✓ allowed  connection to api.example.com:443"),
  });
  // The pattern itself is advised, not the path that stood for it.
  expect(await explain("--port", "80")).toMatchObject({
    code: 1,
    stdout: expect.stringMatching(/✗ denied[\s\S]*binaries: \[\{path: "\*\*"\}\]/),
  });
  writeFileSync(file, "version: 1\n");
  expect((await explain()).stdout).toContain('binaries: [{path: "<program>"}]');
  expect((await explain("--binary", "/usr/bin/curl")).stdout).toContain('binaries: [{path: "/usr/bin/curl"}]');
  writeFileSync(file, rules);
  const post = await explain("--method", "POST", "--path", "/v1/chat/completions?x=1");
  expect(post).toMatchObject({ code: 0, stdout: expect.stringContaining("✓ allowed  POST /v1/chat/completions") });
  const get = await explain("--method", "GET", "--path", "/", "-o", "json");
  expect(get.code).toBe(1);
  expect(JSON.parse(get.stdout)).toMatchObject({
    allowed: false,
    decisions: [{ allowed: true, rule: "model" }, { allowed: false }],
  });
});

test("policy set: unchanged, stored, and the statuses of --wait", async () => {
  const file = join(gateway.folder, "policy.yaml");
  writeFileSync(file, "version: 1\n");
  let status = "LOADED";
  gateway.answers.set("GetSandboxConfig", { message: { version: 1 } });
  gateway.answers.set("GetSandboxPolicyStatus", () => ({
    message: { activeVersion: 3, revision: { version: 2, status: `POLICY_STATUS_${status}`, loadError: "no good" } },
  }));
  const set = (...argv: string[]) => run(["policy", "set", "dev", "--policy", file, ...argv]);
  gateway.answers.set("UpdateConfig", { message: { version: 1, policyHash: "abcdef0123456789" } });
  expect(await set()).toMatchObject({ code: 0, stderr: "· Policy unchanged (version 1, hash abcdef012345).\n" });
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "abcdef0123456789" } });
  expect((await set()).stderr).toBe("✓ Policy version 2 stored (hash abcdef012345).\n");
  expect(lastCall("UpdateConfig")).toEqual({
    workspaceScope: { workspace: "default" },
    sandbox: "dev",
    policy: { version: 1 },
  });
  expect(await set("--wait")).toMatchObject({ code: 0, stderr: expect.stringContaining("is in force") });
  const conditions = [
    { type: "PolicyCurrent", status: "False", reason: "Degraded", message: "in force only in part: x" },
  ];
  gateway.answers.set("GetSandbox", { message: { sandbox: { metadata: { name: "dev" }, status: { conditions } } } });
  expect(await set("--wait")).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/^! .*is in force only in part: x$/m),
  });
  status = "SUPERSEDED";
  expect(await set("--wait")).toMatchObject({ code: 0, stderr: expect.stringContaining("superseded by version 3") });
  status = "FAILED";
  expect(await set("--wait")).toMatchObject({ code: 1, stderr: expect.stringContaining("rejected: no good") });
  status = "PENDING";
  for (const phase of ["STOPPED", "COMPLETED", "ERROR"]) {
    gateway.answers.set("GetSandbox", { message: { sandbox: { status: { phase: `SANDBOX_PHASE_${phase}` } } } });
    const looks = () => gateway.calls.filter(({ method }) => method === "GetSandboxPolicyStatus").length;
    const before = looks();
    expect(await set("--wait", "--timeout", "60")).toMatchObject({
      code: 0,
      stderr: expect.stringContaining(`takes effect at the next start: the sandbox is ${phase.toLowerCase()}.\n`),
    });
    expect(looks()).toBe(before + 1);
  }
  gateway.answers.set("GetSandbox", { message: { sandbox: { status: { phase: "SANDBOX_PHASE_READY" } } } });
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "abcdef0123456789" }, afterMs: 1_500 });
  const begun = performance.now();
  expect(await set("--wait", "--timeout", "2")).toMatchObject({ code: 124 });
  // What the gateway waited is part of it.
  expect(performance.now() - begun).toBeLessThan(2_400);
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "abcdef0123456789" } });
  const told = () =>
    gateway.calls.findLast(({ method }) => method === "UpdateConfig")?.headers["openshell-config-wait"];
  expect(told()).toBe("2");
  expect((await set("--no-wait")).code).toBe(0);
  expect(told()).toBe("0");
  expect(await set()).toMatchObject({ code: 0, stderr: expect.stringContaining("version 2 is not in force yet") });
  expect(told()).toBeUndefined();
  status = "FAILED";
  expect(await set()).toMatchObject({ code: 0, stderr: expect.stringContaining("rejected: no good") });
  expect(await set("--no-wait", "--wait")).toMatchObject({ code: 2 });
});

test("policy get: says whether what is wanted is in force", async () => {
  const config = { version: 3, policyHash: "ab", policySource: "POLICY_SOURCE_SANDBOX", configRevision: "7" };
  gateway.answers.set("GetSandboxConfig", { message: config });
  const status = {
    phase: "SANDBOX_PHASE_READY",
    currentPolicyVersion: 2,
    conditions: [{ type: "PolicyCurrent", status: "True", reason: "Applied" }],
    configurationAdmission: { state: "CONFIGURATION_ADMISSION_STATE_ACCEPTED", configRevision: "7", error: "no good" },
  };
  const shown = async (changes: object): Promise<string | undefined> => {
    const message = { sandbox: { metadata: { name: "dev" }, status: { ...status, ...changes } } };
    gateway.answers.set("GetSandbox", { message });
    return /^In force: (.*)$/m.exec(await stdoutOf("policy", "get", "dev"))?.[1];
  };
  const { configurationAdmission } = status;
  expect(await shown({})).toBe("yes");
  expect(await shown({ configurationAdmission: undefined })).toBe("not yet");
  expect(await shown({ configurationAdmission: { ...configurationAdmission, configRevision: "6" } })).toBe("not yet");
  const json = JSON.parse(await stdoutOf("policy", "get", "dev", "-o", "json"));
  expect(json).toMatchObject({ version: 3, status: "effective", in_force: false, active_version: 2 });
  const rejected = { ...configurationAdmission, state: "CONFIGURATION_ADMISSION_STATE_REJECTED" };
  expect(await shown({ configurationAdmission: rejected })).toBe("no: no good");
  const conditions = [{ type: "PolicyCurrent", status: "False", reason: "Degraded" }];
  expect(await shown({ conditions })).toBe("in part, see openshell sandbox get");
  expect(await shown({ phase: "SANDBOX_PHASE_STOPPED" })).toBe("no, at the next start: the sandbox is stopped");
});

test("policy set: sections that apply at start-up stay as they are where the file has none", async () => {
  const file = join(gateway.folder, "policy.yaml");
  const filesystem = { includeWorkdir: true, readOnly: ["/usr"], readWrite: ["/tmp"] };
  const landlock = { compatibility: "best_effort" };
  gateway.answers.set("GetSandboxConfig", { message: { version: 1, policy: { version: 1, filesystem, landlock } } });
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "abcdef0123456789" } });
  const set = () => run(["policy", "set", "dev", "--policy", file]);
  writeFileSync(file, "version: 1\n");
  expect((await set()).stderr).toContain("kept as they were: filesystem_policy, landlock\n");
  expect(lastCall("UpdateConfig")).toMatchObject({ policy: { version: 1, filesystem, landlock } });
  writeFileSync(file, "version: 1\nfilesystem_policy: {read_only: [/opt]}\n");
  expect((await set()).stderr).toContain("kept as they were: landlock\n");
  expect(lastCall("UpdateConfig")).toMatchObject({ policy: { filesystem: { readOnly: ["/opt"] } } });
});

test("logs: one safe line each, following until the end", async () => {
  const line = {
    eventTime: "2026-01-01T00:00:00.250Z",
    level: "WARN",
    source: "sandbox",
    target: "egress",
    message: "DENIED x\n[0.000] forged",
    fields: { b: "2", a: "1" },
  };
  const shown = "[1767225600.250] [sandbox] [WARN ] [egress] DENIED x\\x0a[0.000] forged a=1 b=2\n";
  gateway.answers.set("GetSandboxLogs", { message: { logs: [line], bufferTotal: 1 } });
  expect(await stdoutOf("logs", "dev", "-n", "5", "--level", "warn", "--source", "sandbox")).toBe(shown);
  expect(lastCall("GetSandboxLogs")).toMatchObject({
    sandbox: "dev",
    lines: 5,
    minLevel: "WARN",
    sources: ["sandbox"],
  });
  gateway.streams.set("WatchSandbox", [{ log: line }, { warning: { message: "some lines were left out" } }]);
  expect(await run(["logs", "dev", "-f", "--since", "5m"])).toEqual({
    code: 0,
    stdout: shown,
    stderr: "! some lines were left out\n",
  });
  expect(lastCall("WatchSandbox")).toMatchObject({ followLogs: true, logTailLines: 200 });
  const message =
    "NET:REFUSE [MED] DENIED /bin/x(5) -> a.example:443 [policy:-] [reason:no] [code:policy_denied next:Add\\u{20}it. g:1]";
  gateway.answers.set("GetSandboxLogs", { message: { logs: [{ ...line, message, fields: {} }], bufferTotal: 1 } });
  const forPerson = (await run(["logs", "dev"], { columns: 200, env: { NO_COLOR: "1" } })).stdout;
  expect(forPerson).toMatch(/DENIED [^\n]*\n {2}next: Add it\.\n$/);
  expect((await stdoutOf("logs", "dev")).split("\n")).toHaveLength(2);
  expect((await run(["logs", "dev", "--since", "yesterday"])).code).toBe(2);
});

test("create --detach waits until the sandbox is ready, and tells why it never will be", async () => {
  gateway.answers.set("CreateSandbox", { message: { sandbox: sandbox("dev", "PROVISIONING") } });
  const create = ["sandbox", "create", "--name", "dev", "--detach", "--", "sleep", "infinity"];
  gateway.streams.set("WatchSandbox", [
    { sandbox: sandbox("dev", "PROVISIONING") },
    { sandbox: sandbox("dev", "READY") },
  ]);
  expect(await run(create)).toEqual({ code: 0, stdout: "\nCreated sandbox: dev\n\n", stderr: "" });
  expect(lastCall("CreateSandbox")).toEqual({
    workspaceScope: { workspace: "default" },
    name: "dev",
    awaitMainProcessAttachment: false,
    spec: { command: ["sleep", "infinity"], tty: false },
  });
  const json = await run([...create.slice(0, 4), "-o", "json"]);
  expect(JSON.parse(json.stdout)).toMatchObject({ name: "dev", phase: "Ready", service_urls: {} });
  const conditions = [{ type: "Ready", status: "False", reason: "StartFailed", message: "no memory" }];
  gateway.streams.set("WatchSandbox", [{ sandbox: sandbox("dev", "ERROR", { conditions }) }]);
  expect(await run(create)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("phase Error: StartFailed: no memory"),
  });
  const refused = [{ type: "Ready", status: "False", reason: "ConfigurationInvalid", message: "no such field" }];
  const provisioning = { deadline: "2026-01-01T00:05:00Z" };
  const held = { sandbox: sandbox("dev", "PROVISIONING", { conditions: refused, provisioning }) };
  gateway.streams.set("WatchSandbox", [held, held, { sandbox: sandbox("dev", "READY") }]);
  const { code, stderr } = await run(create);
  expect(code).toBe(0);
  expect(
    stderr.match(/is held, and nothing in it runs: no such field\n {2}next: .*policy set dev .*until 2026/g),
  ).toHaveLength(1);
  // The last one used stands for a name that is left out.
  gateway.answers.set("GetSandboxLogs", { message: {} });
  expect((await run(["logs"])).stderr).toBe("→ sandbox dev (used last)\n");
});

test("create: image, devices, restarts, routes and templates travel as the API names them", async () => {
  gateway.answers.set("CreateSandbox", { error: { code: "invalid_argument", message: "stop here" } });
  const flags = ["--from", "img:1", "--gpu=2", "--restart-policy", "on-failure", "--expose", "8080"];
  await run(["sandbox", "create", "--detach", ...flags, "--", "x"]);
  expect(lastCall("CreateSandbox")).toMatchObject({
    serviceExposures: [{ service: "", targetPort: 8080, authorizationMode: "SERVICE_AUTHORIZATION_MODE_STRIP" }],
    spec: {
      template: { image: "img:1" },
      resourceRequirements: { gpu: { count: 2 } },
      restartPolicy: "SANDBOX_RESTART_POLICY_ON_FAILURE",
    },
  });
  expect((await run(["sandbox", "create", "--template", "t", "--gpu"])).code).toBe(2);
  await run(["sandbox", "create", "--template", "t"]);
  expect(lastCall("CreateSandbox")).toMatchObject({ workloadTemplate: "t" });
  expect((await run(["sandbox", "create", "--expose-authorization-mode", "strip"])).code).toBe(2);
});

test("what a sandbox is made of travels as the gateway reads it", async () => {
  gateway.answers.set("CreateSandbox", { error: { code: "invalid_argument", message: "stop here" } });
  const argv = ["run", "--volume", "src:/work", "--volume", "~/d:/data:ro", "--env", "A=1=2", "--label", "l=v"];
  const more = [
    "--provider",
    "p",
    "--provider",
    "q",
    "--cpu",
    "500m",
    "--memory",
    "1Gi",
    "--workdir",
    "/data",
    "--",
    "ls",
    "-l",
  ];
  expect(await run([...argv, ...more], { cwd: "/home/me" })).toMatchObject({
    code: 1,
    stderr: "error: stop here\n  next: Correct what the message names\n  code: invalid_argument\n",
  });
  expect(lastCall("CreateSandbox")).toMatchObject({
    labels: { l: "v" },
    awaitMainProcessAttachment: true,
    spec: {
      environment: { A: "1=2" },
      providers: ["p", "q"],
      template: {
        resources: { limits: { cpu: "500m", memory: "1Gi" } },
        driverConfig: { local: { volumes: ["/home/me/src:/work", `${gateway.env["HOME"]}/d:/data:ro`] } },
      },
      command: ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"', "/data", "ls", "-l"],
      tty: false,
    },
  });
  expect(gateway.calls.map((call) => call.method)).toEqual(["GetGatewayInfo", "CreateSandbox"]);
  const wrong = [
    ["--volume", "x"],
    ["--volume", "x:rel"],
    ["--volume", "a:/b:rx"],
    ["--env", "1A=x"],
    ["--env", "OPENSHELL_X=1"],
    ["--cpu", "many"],
    ["--memory", "1Q"],
    ["--workdir", "rel"],
  ];
  for (const flags of wrong)
    expect(await run(["run", ...flags, "--", "ls"]), flags.join(" ")).toMatchObject({ code: 2 });
  expect(gateway.calls).toHaveLength(2);
});

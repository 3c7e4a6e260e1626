import { once } from "node:events";
import { readFileSync } from "node:fs";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { newSecret } from "../../support/secrets.ts";

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
  await openshell.ok(
    ["sandbox", "create", "--name", "dev", "--detach", "--label", "team=blue", "--", "sleep", "infinity"],
    {
      timeoutMs: 60_000,
    },
  );
});

afterAll(async () => {
  await openshell[Symbol.asyncDispose]();
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const phase = async (name: string): Promise<string> =>
  (await openshell.json<{ phase: string }>(["sandbox", "get", name])).phase;

test("get and list agree, in every form", async () => {
  const one = await openshell.json<Record<string, unknown>>(["sandbox", "get", "dev"]);
  expect(one).toMatchObject({
    name: "dev",
    phase: "Ready",
    labels: { team: "blue" },
    command: ["sleep", "infinity"],
    policy: { version: 1 },
  });
  const list = await openshell.json<{ sandboxes: { id: string }[]; next_page_token: string }>(["sandbox", "list"]);
  expect(list.sandboxes.map((item) => item.id)).toEqual([one["id"]]);
  expect(list.next_page_token).toBe("");
  expect(await openshell.ok(["sandbox", "list", "--selector", "team=red", "--names"])).toBe("");
  expect(await openshell.ok(["sandbox", "list"])).toMatch(/^NAME {2}CREATED {14}PHASE\ndev {3}[\d: -]{19} {2}Ready\n$/);
  expect(await openshell.ok(["sandbox", "get", "dev", "--policy-only"])).toMatch(/^version: 1\n/);
});

test("exec: streams, status, folder, variables, input, limit", async () => {
  const result = await openshell.run(["sandbox", "exec", "dev", "--", "sh", "-c", "cat; echo e >&2; exit 3"], {
    stdin: "in",
  });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([3, "in", "e\n"]);
  expect(
    await openshell.ok([
      "sandbox",
      "exec",
      "-n",
      "dev",
      "--workdir",
      "/tmp",
      "--env",
      "A=b",
      "--",
      "sh",
      "-c",
      "pwd; echo $A",
    ]),
  ).toBe("/tmp\nb\n");
  const late = await openshell.run(["sandbox", "exec", "dev", "--timeout", "1", "--", "sleep", "60"]);
  expect(late.exitCode).toBe(124);
  expect((await openshell.run(["sandbox", "exec", "dev", "--", "no-such-program"])).exitCode).toBe(127);
  expect((await openshell.run(["sandbox", "exec", "dev"])).exitCode).toBe(2);
  const unknown = await openshell.run(["sandbox", "exec", "nobody", "--", "true"]);
  expect(unknown.exitCode).toBe(1);
  expect(unknown.stderr).toBe(
    'error: sandbox "nobody" does not exist\n  next: `openshell sandbox list` shows what there is\n  code: not_found\n',
  );
});

test("an interrupted exec ends inside as well", async () => {
  const child = openshell.spawn(["sandbox", "exec", "dev", "--", "sh", "-c", "echo on; sleep 12345"]);
  await once(child.stdout!, "data");
  child.kill("SIGINT");
  expect((await once(child, "exit"))[0]).toBe(130);
  const look = ["sandbox", "exec", "dev", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"];
  await expect.poll(() => openshell.ok(look), { timeout: 5_000 }).not.toContain("sleep 12345");
});

test("stop keeps the files, start brings it back", async () => {
  await openshell.ok(["sandbox", "exec", "dev", "--", "sh", "-c", "echo kept >~/note"]);
  await openshell.ok(["sandbox", "stop", "dev"]);
  expect(await phase("dev")).toBe("Stopped");
  const refused = await openshell.run(["sandbox", "exec", "dev", "--", "true"]);
  expect([refused.exitCode, refused.stderr]).toEqual([1, expect.stringContaining("is stopped")]);
  await openshell.ok(["sandbox", "start", "dev"]);
  expect(await openshell.ok(["sandbox", "exec", "dev", "--", "cat", "/sandbox/note"])).toBe("kept\n");
});

test("a created sandbox stays with the status of its main process", async () => {
  const failed = await openshell.run(["sandbox", "create", "--name", "job", "--", "sh", "-c", "echo done; exit 4"]);
  expect([failed.exitCode, failed.stdout]).toEqual([4, "done\n"]);
  await expect.poll(() => openshell.json(["sandbox", "get", "job"])).toMatchObject({ phase: "Error", exit_code: 4 });
  const again = await openshell.run(["sandbox", "create", "--name", "job", "--", "true"]);
  expect([again.exitCode, again.stderr]).toEqual([1, expect.stringContaining("openshell sandbox delete job")]);
  const brief = await openshell.run(["sandbox", "create", "--name", "brief", "--no-keep", "--", "sh", "-c", "exit 6"]);
  expect(brief.exitCode).toBe(6);
  expect(await openshell.ok(["sandbox", "list", "--names"])).toBe("dev\njob\n");
  const gone = await openshell.run(["sandbox", "delete", "job", "never-was"]);
  expect([gone.exitCode, gone.stderr]).toEqual([0, "✓ Deleted sandbox job.\n! Sandbox never-was does not exist.\n"]);
});

test("leaving a kept sandbox ends neither its main process nor its input", async () => {
  const child = openshell.spawn([
    "sandbox",
    "create",
    "--name",
    "stay",
    "--no-tty",
    "--",
    "sh",
    "-c",
    "echo on; cat; echo ended",
  ]);
  await once(child.stdout!, "data");
  child.kill("SIGINT");
  expect((await once(child, "exit"))[0]).toBe(130);
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(await phase("stay")).toBe("Ready");
  await openshell.ok(["sandbox", "delete", "stay"]);
});

test("a policy is shown, replaced while the sandbox runs, and listed", async () => {
  const host = await net.host("api.example.com");
  const fetch = [
    "sandbox",
    "exec",
    "dev",
    "--",
    "curl",
    "-sS",
    "-o",
    "/dev/null",
    "-w",
    "%{http_code}",
    `https://${host.name}/x`,
  ];
  expect((await openshell.run(fetch)).stdout).not.toBe("200");
  const policy = `version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "**" }]
`;
  const file = openshell.home.write("policy.yaml", policy);
  await openshell.ok(["policy", "validate", file]);
  await openshell.ok(["policy", "set", "dev", "--policy", file, "--wait"]);
  expect(await openshell.ok(fetch)).toBe("200");
  const unchanged = await openshell.run(["policy", "set", "dev", "--policy", file]);
  expect([unchanged.exitCode, unchanged.stderr]).toEqual([0, expect.stringContaining("unchanged")]);
  const explain = ["policy", "explain", "dev", "--host", host.name, "--method", "DELETE", "--path", "/x"];
  expect((await openshell.run(explain)).exitCode).toBe(1);
  expect((await openshell.run(explain.with(6, "GET"))).exitCode).toBe(0);
  const { revisions } = await openshell.json<{ revisions: { version: number; status: string }[] }>([
    "policy",
    "list",
    "dev",
  ]);
  expect(revisions.map((item) => item.status)).toEqual(["loaded", "superseded"]);
  const log = await openshell.ok(["logs", "dev"]);
  expect(log).toMatch(/\] \[OCSF \] .*DENIED .*api\.example\.com/);
});

test("a provider's values are never shown", async () => {
  const secret = newSecret();
  const env = { MODEL_KEY: secret };
  const outputs = [
    await openshell.run(["provider", "create", "--name", "model", "--type", "generic", "--credential", "MODEL_KEY"], {
      env,
    }),
    await openshell.run(["provider", "get", "model", "-o", "json"]),
    await openshell.run(["provider", "list", "-o", "yaml"]),
    await openshell.run(["provider", "update", "model", "--credential", "MODEL_KEY=-"], { stdin: `${secret}-2\n` }),
    await openshell.run(["run", "--provider", "model", "--", "sh", "-c", "env"]),
    await openshell.run(["provider", "delete", "model"]),
    await openshell.run(["provider", "delete", "model"]),
  ];
  for (const { argv, exitCode, stdout, stderr } of outputs) {
    expect([exitCode, `${stdout}${stderr}`.includes(secret)], `${argv.join(" ")}: ${stderr}`).toEqual([0, false]);
  }
  expect(JSON.parse(outputs[1]!.stdout)).toMatchObject({
    name: "model",
    type: "generic",
    credential_keys: ["MODEL_KEY"],
  });
  expect(outputs[4]!.stdout).toMatch(/^MODEL_KEY=\S+$/m);
  expect(readFileSync(`${openshell.home.state}/openshell/openshell/logs/gateway.log`, "utf8")).not.toContain(secret);
});

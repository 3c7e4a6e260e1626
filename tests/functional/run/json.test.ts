import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { newSecret } from "../../support/secrets.ts";

/** What scripts read: the keys of every `-o json`, in order, and the kind of each value. A change here breaks somebody. */

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
  await openshell.ok(["provider", "create", "--name", "model", "--type", "generic", "--credential", "KEY"], {
    env: { KEY: newSecret() },
    timeoutMs: 60_000,
  });
});

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** The same value with what differs from run to run replaced by its kind. */
function shape(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shape);
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, shape(inner)]));
  }
  if (typeof value === "string" && TIME.test(value)) return "<time>";
  if (typeof value === "string" && ID.test(value)) return "<id>";
  if (typeof value === "string" && /^[0-9a-f]{64}$/.test(value)) return "<hash>";
  return value;
}

const json = async (...args: string[]): Promise<unknown> => shape(await openshell.json(args));
/** Keys of an object in order. */
const keys = (value: unknown): readonly string[] => Object.keys(value as object);

const SANDBOX_KEYS = [
  ...["id", "name", "workspace", "labels", "annotations", "resource_version", "created_at", "phase"],
  ...["current_policy_version", "command", "providers", "exit_code", "restart_count", "next_restart_time"],
  ...["main_process_started_time", "conditions", "isolation", "endpoint_statuses"],
];

test("sandbox create, get, list, stop, start, delete", async () => {
  const flags = ["--name", "one", "--label", "team=blue", "--provider", "model", "-o", "json"];
  const output = await openshell.ok(["sandbox", "create", ...flags, "--", "sleep", "infinity"]);
  const created = shape(JSON.parse(output));
  expect(keys(created)).toEqual([...SANDBOX_KEYS, "service_urls"]);
  expect(created).toMatchObject({
    id: "<id>",
    name: "one",
    workspace: "default",
    labels: { team: "blue" },
    created_at: "<time>",
    phase: "Ready",
    current_policy_version: 1,
    command: ["sleep", "infinity"],
    providers: ["model"],
    exit_code: null,
    restart_count: 0,
    next_restart_time: null,
    main_process_started_time: "<time>",
    service_urls: {},
  });
  const got = (await json("sandbox", "get", "one")) as Record<string, unknown>;
  expect(keys(got)).toEqual([...SANDBOX_KEYS, "policy_source", "revision", "policy"]);
  const conditions = got["conditions"] as readonly Record<string, unknown>[];
  expect(conditions.map(({ type, status }) => [type, status])).toEqual([
    ["Ready", "True"],
    ["ConfigurationReady", "True"],
    ["Isolation", expect.stringMatching(/^(True|False)$/)],
    ["WorkloadIdentity", "True"],
  ]);
  for (const condition of conditions) {
    expect(keys(condition)).toEqual(["type", "status", "reason", "message", "transition_time"]);
  }
  const list = (await json("sandbox", "list")) as { sandboxes: readonly unknown[] };
  expect(keys(list)).toEqual(["sandboxes", "next_page_token"]);
  expect(list.sandboxes.map(keys)).toEqual([SANDBOX_KEYS]);

  await openshell.ok(["sandbox", "stop", "one"]);
  expect(await json("sandbox", "get", "one")).toMatchObject({ phase: "Stopped" });
  await openshell.ok(["sandbox", "start", "one"]);
  expect(await json("sandbox", "get", "one")).toMatchObject({ phase: "Ready" });
  await openshell.ok(["sandbox", "delete", "one"]);
  expect(await json("sandbox", "list")).toEqual({ sandboxes: [], next_page_token: "" });
});

test("a page at a time", async () => {
  for (const name of ["a", "b", "c"]) {
    await openshell.ok(["sandbox", "create", "--name", name, "--detach", "--", "sleep", "infinity"]);
  }
  const seen: string[] = [];
  for (let token = "", pages = 0; pages === 0 || token !== ""; pages++) {
    const page = await openshell.json<{ sandboxes: { name: string }[]; next_page_token: string }>([
      ...["sandbox", "list", "--page-size", "2"],
      ...(token === "" ? [] : ["--page-token", token]),
    ]);
    seen.push(...page.sandboxes.map(({ name }) => name));
    token = page.next_page_token;
    expect(pages).toBeLessThan(3);
  }
  expect(seen.sort()).toEqual(["a", "b", "c"]);
  await openshell.ok(["sandbox", "delete", "a", "b", "c"]);
});

test("provider get and list show names of credentials, never values", async () => {
  const one = await json("provider", "get", "model");
  expect(one).toMatchObject({ id: "<id>", name: "model", type: "generic" });
  expect(JSON.stringify(one)).toContain("KEY");
  expect(await json("provider", "list")).toMatchObject({ providers: [{ name: "model" }], next_page_token: "" });
});

test("an error is one line for people and a status for scripts, also with -o json", async () => {
  const result = await openshell.run(["sandbox", "get", "absent", "-o", "json"]);
  expect(result).toMatchObject({ exitCode: 1, stdout: "" });
  expect(result.stderr).toMatch(/^error: .*absent.*\n {2}next: .+\n {2}code: not_found\n$/);
});

test("status", async () => {
  expect(await json("status")).toEqual({
    gateway: "openshell",
    server: expect.stringMatching(/\/user\.sock$/),
    authentication: { provider: "local", status: "authenticated" },
    identity: {
      subject: `uid:${process.getuid!()}`,
      identity_provider: "local",
      roles: ["openshell-user", "openshell-admin"],
    },
    health: "healthy",
    status: "connected",
    version: expect.stringMatching(/^\d+\.\d+\.\d+/),
  });
});

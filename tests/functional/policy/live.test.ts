import { setTimeout as sleep } from "node:timers/promises";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { TestGateway, type TestSandbox } from "../../support/api.ts";
import { BULK_BYTES, bulkSha256, type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";

/** A change of policy while programs use the network: who notices, and how soon. */

const endpoint = (host: string, rules: string) => `
  ${host.split(".")[0]}:
    endpoints:
      - { host: ${host}, port: 443, protocol: rest, enforcement: enforce, ${rules} }
    binaries: [{ path: "/**" }]`;
const policy = (...rules: string[]) => `version: 1\nnetwork_policies:${rules.join("")}\n`;

const BULK = endpoint("bulk.example-allowed.com", "access: read-only");
const API = endpoint("api.example-allowed.com", "access: read-only");
const API_WITHOUT_GET = endpoint("api.example-allowed.com", 'rules: [{ allow: { method: POST, path: "/**" } }]');

/** Requests one after another on one connection: a line with the time of asking, in ms, and the status. */
const REQUESTS = `
import http.client, time
connection = http.client.HTTPSConnection("api.example-allowed.com")
end = time.time() + 30
while time.time() < end:
    asked = time.time()
    try:
        connection.request("GET", "/x")
        answer = connection.getresponse()
        answer.read()
        status = answer.status
    except (OSError, http.client.HTTPException):
        connection.close()
        status = 0
    print(int(asked * 1000), status, flush=True)
    time.sleep(0.002)
`;

/** From the acknowledgement of a change until it decides, in ms; the median of the changes. */
const BUDGET_MS = 50;
const CHANGES = 10;

/** Where supervisors are: one host for a workspace, or one for each sandbox. What is cut, and where, is the same in both modes. */
const PLACEMENTS = mode === "user" ? ["workspace"] : ["workspace", "sandbox"];

let before: Inventory;
let net: TestInternet;
const places = new Map<string, { readonly gateway: TestGateway; readonly sandbox: TestSandbox }>();
let gateway: TestGateway;
let sandbox: TestSandbox;
let bulk: TestHost;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  await net.host("api.example-allowed.com");
  bulk = await net.host("bulk.example-allowed.com");
  for (const placement of PLACEMENTS) {
    const extra = `[openshell.supervisor]\nplacement = "${placement}"\n`;
    const started = await TestGateway.start(net, { gateway: { extra } });
    places.set(placement, { gateway: started, sandbox: await started.create({ policy: policy(BULK, API) }) });
  }
});

beforeEach(() => {
  ({ gateway, sandbox } = places.get("workspace")!);
});

afterAll(async () => {
  for (const place of places.values()) await place.gateway[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

/** `policy set` as people use it: returns when the sandbox has taken it up. */
async function set(text: string): Promise<void> {
  const file = gateway.user.home.write("policy.yaml", text);
  await gateway.user.ok(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
}

test("the next request follows a change", { timeout: 90_000 }, async () => {
  const requests = sandbox.exec(["/usr/bin/python3", "-c", REQUESTS], { timeoutMs: 60_000 });
  await sleep(1_000);
  const changes: { readonly acknowledged: number; readonly status: number }[] = [];
  for (let change = 0; change < CHANGES; change++) {
    const allowed = change % 2 === 1;
    await set(policy(BULK, allowed ? API : API_WITHOUT_GET));
    changes.push({ acknowledged: Date.now(), status: allowed ? 200 : 403 });
    await sleep(700);
  }
  const seen = (await requests).stdout
    .trim()
    .split("\n")
    .map((line) => line.split(" ").map(Number) as [number, number]);
  const delays = changes.map(({ acknowledged, status }, at) => {
    const until = changes[at + 1]?.acknowledged ?? Number.POSITIVE_INFINITY;
    const after = seen.filter(([asked]) => asked >= acknowledged && asked < until - 600);
    expect(after.length, `requests after change ${at}`).toBeGreaterThan(3);
    // The last request that the old policy still decided.
    const late = after.findLast(([, got]) => got !== status);
    return late === undefined ? 0 : late[0] - acknowledged;
  });
  delays.sort((a, b) => a - b);
  expect(delays[CHANGES / 2], `delays in ms: ${delays.join(", ")}`).toBeLessThanOrEqual(BUDGET_MS);
  expect(delays.at(-1), `delays in ms: ${delays.join(", ")}`).toBeLessThanOrEqual(5 * BUDGET_MS);
});

/** Lines of the log that came after a time (ms). */
async function logsSince(time: number): Promise<readonly string[]> {
  const { logs } = await gateway.client.getSandboxLogs({
    workspaceScope: { selection: { case: "workspace", value: "default" } },
    sandbox: sandbox.name,
    lines: 1_000,
    sinceTime: timestampFromMs(time),
  });
  return logs.map(({ message }) => message);
}

/** A download that takes some seconds; resolves with curl's status and the hash of what arrived. */
function download(): Promise<{ readonly code: string; readonly hash: string; readonly error: string }> {
  const script = `
    exec 3>&1
    code=$({ { curl -sS --limit-rate 60M ${bulk.url(`/bytes/${BULK_BYTES}`)}; echo $? >&4; } | sha256sum | cut -c1-64 >&3; } 4>&1)
    echo $code`;
  return sandbox.sh(script, { timeoutMs: 60_000 }).then(({ stdout, stderr }) => {
    const [hash = "", code = ""] = stdout.trim().split("\n");
    return { code, hash, error: stderr };
  });
}

test("a download of 200 MB that stays allowed survives every change", { timeout: 90_000 }, async () => {
  await set(policy(BULK, API));
  const running = download();
  await sleep(800);
  expect(bulk.received().connections.filter(({ closed }) => !closed)).toHaveLength(1);
  await set(policy(BULK));
  await set(policy(BULK, API_WITHOUT_GET));
  await set(policy(endpoint("bulk.example-allowed.com", "access: full"), API));
  const { code, hash, error } = await running;
  expect({ code, error }).toEqual({ code: "0", error: "" });
  expect(hash).toBe(bulkSha256(BULK_BYTES));
});

test.each(PLACEMENTS)(
  "a download that is no longer allowed is cut, with one event (host of a %s)",
  { timeout: 90_000 },
  async (placement) => {
    ({ gateway, sandbox } = places.get(placement)!);
    await set(policy(BULK, API));
    const running = download();
    await sleep(800);
    const changedAt = Date.now();
    const startedAt = performance.now();
    await set(policy(API));
    const { code, error } = await running;
    expect(performance.now() - startedAt).toBeLessThan(2_000);
    expect(Number(code), error).toBeGreaterThan(0);
    await expect.poll(() => bulk.received().connections.filter(({ closed }) => !closed)).toEqual([]);
    await sandbox.logged(/NET:RESET .*bulk\.example-allowed\.com/);
    await sleep(500);
    const told = (await logsSince(changedAt)).filter((line) => line.includes("bulk.example-allowed.com"));
    expect(told).toHaveLength(1);
  },
);

test("the same policy again changes nothing, ends nothing and logs nothing", { timeout: 90_000 }, async () => {
  await set(policy(BULK, API));
  const running = download();
  await sleep(800);
  const { resourceVersion } = (await sandbox.get()).metadata!;
  const file = gateway.user.home.write("policy.yaml", `# another comment\n${policy(API, BULK)}`);
  const setAt = Date.now();
  const again = await gateway.user.run(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
  expect(again).toMatchObject({ exitCode: 0, stderr: expect.stringContaining("unchanged") });
  await sleep(300);
  expect(await logsSince(setAt)).toEqual([]);
  expect((await sandbox.get()).metadata!.resourceVersion).toBe(resourceVersion);
  expect(await running).toMatchObject({ code: "0", hash: bulkSha256(BULK_BYTES) });
});

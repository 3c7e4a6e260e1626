import { setTimeout as sleep } from "node:timers/promises";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TestGateway, TestSandbox } from "../../support/api.ts";
import { BULK_BYTES, bulkSha256, type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { VARIANTS, type Variant, VariantGateway } from "../../support/variants.ts";

/** A change of policy while programs use the network: who notices, and how soon. */

const endpoint = (host: string, rules: string) => `
  ${host.split(".")[0]}:
    endpoints:
      - { host: ${host}, port: 443, protocol: rest, enforcement: enforce, ${rules} }
    binaries: [{ path: "/**" }]`;
const policy = (...rules: string[]) => `version: 1\nnetwork_policies:${rules.join("")}\n`;

const API = endpoint("api.example-allowed.com", "access: read-only");
const API_WITHOUT_GET = endpoint("api.example-allowed.com", 'rules: [{ allow: { method: POST, path: "/**" } }]');

/** Requests one after another on one connection until the file is there: a line with the time of asking, in ms, and the status. */
const ENOUGH = "/tmp/enough";
const REQUESTS = `
import http.client, os, time
connection = http.client.HTTPSConnection("api.example-allowed.com")
end = time.time() + 60
while time.time() < end and not os.path.exists("${ENOUGH}"):
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
/** How long each is in force, and what a request takes that was asked just before the next one. */
const HOLD_MS = 500;
const MARGIN_MS = 50;

/** What is cut, and where, is the same in both modes, and revision 0 takes changes up as 1 does: tests/functional/delivery has it all. */
const KINDS: readonly Variant[] =
  mode === "user" ? ["workspace"] : VARIANTS.filter((variant) => variant !== "revision 0");
/** Between two looks of a supervisor that polls. Milliseconds. */
const LOOK_MS = 200;

let before: Inventory;
let net: TestInternet;
interface Place {
  readonly started: VariantGateway;
  readonly sandbox: TestSandbox;
  /** Of this place alone: connections to it are counted. */
  readonly bulk: TestHost;
}
const places = new Map<Variant, Place>();
let gateway: TestGateway;
let sandbox: TestSandbox;
let bulk: TestHost;
let readBulk: string;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  await net.host("api.example-allowed.com");
  for (const variant of KINDS) {
    const started = await VariantGateway.start(net, variant, { lookMs: LOOK_MS });
    const host = await net.host(`bulk-${variant.replace(" ", "-")}.example-allowed.com`);
    places.set(variant, { started, sandbox: await started.gateway.create({ policy: policy(API) }), bulk: host });
  }
});

afterAll(async () => {
  for (const { started } of places.values()) await started[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

/** The tests below are about this one. */
async function use(variant: Variant): Promise<void> {
  const place = places.get(variant)!;
  ({ sandbox, bulk } = place);
  ({ gateway } = place.started);
  readBulk = endpoint(bulk.name, "access: read-only");
  await set(policy(readBulk, API));
}

/** `policy set` as people use it: returns when the sandbox has taken it up. */
async function set(text: string): Promise<void> {
  const file = gateway.user.home.write("policy.yaml", text);
  await gateway.user.ok(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
}

test.each(KINDS)("(%s) the next request follows a change", { timeout: 90_000 }, async (variant) => {
  await use(variant);
  const requests = sandbox.exec(["/usr/bin/python3", "-c", REQUESTS], { timeoutMs: 80_000 });
  await sleep(1_000);
  const changes: { readonly asked: number; readonly acknowledged: number; readonly status: number }[] = [];
  for (let change = 0; change < CHANGES; change++) {
    const allowed = change % 2 === 1;
    const asked = Date.now();
    await set(policy(readBulk, allowed ? API : API_WITHOUT_GET));
    changes.push({ asked, acknowledged: Date.now(), status: allowed ? 200 : 403 });
    await sleep(HOLD_MS);
  }
  await sandbox.sh(`touch ${ENOUGH}`);
  const seen = (await requests).stdout
    .trim()
    .split("\n")
    .map((line) => line.split(" ").map(Number) as [number, number]);
  const delays = changes.map(({ acknowledged, status }, at) => {
    const until = changes[at + 1]?.asked ?? Number.POSITIVE_INFINITY;
    const after = seen.filter(([asked]) => asked >= acknowledged && asked < until - MARGIN_MS);
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

test.each(KINDS)(
  "(%s) a download of 200 MB that stays allowed survives every change",
  { timeout: 90_000 },
  async (variant) => {
    await use(variant);
    const running = download();
    await sleep(800);
    expect(bulk.received().connections.filter(({ closed }) => !closed)).toHaveLength(1);
    await set(policy(readBulk));
    await set(policy(readBulk, API_WITHOUT_GET));
    await set(policy(endpoint(bulk.name, "access: full"), API));
    const { code, hash, error } = await running;
    expect({ code, error }).toEqual({ code: "0", error: "" });
    expect(hash).toBe(bulkSha256(BULK_BYTES));
  },
);

test.each(KINDS)(
  "(%s) a download that is no longer allowed is cut, with one event",
  { timeout: 90_000 },
  async (variant) => {
    await use(variant);
    const running = download();
    await sleep(800);
    const changedAt = Date.now();
    const startedAt = performance.now();
    await set(policy(API));
    const { code, error } = await running;
    expect(performance.now() - startedAt).toBeLessThan(2_000);
    expect(Number(code), error).toBeGreaterThan(0);
    await expect.poll(() => bulk.received().connections.filter(({ closed }) => !closed)).toEqual([]);
    await sandbox.logged(new RegExp(`NET:RESET .*${bulk.name}`));
    await sleep(500);
    const told = (await logsSince(changedAt)).filter((line) => line.includes(bulk.name));
    expect(told).toHaveLength(1);
  },
);

test.each(KINDS)(
  "(%s) the same policy again changes nothing, ends nothing and logs nothing",
  { timeout: 90_000 },
  async (variant) => {
    await use(variant);
    const running = download();
    await sleep(800);
    const { resourceVersion } = (await sandbox.get()).metadata!;
    const file = gateway.user.home.write("policy.yaml", `# another comment\n${policy(API, readBulk)}`);
    const setAt = Date.now();
    const again = await gateway.user.run(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
    expect(again).toMatchObject({ exitCode: 0, stderr: expect.stringContaining("unchanged") });
    await sleep(300);
    expect(await logsSince(setAt)).toEqual([]);
    expect((await sandbox.get()).metadata!.resourceVersion).toBe(resourceVersion);
    expect(await running).toMatchObject({ code: "0", hash: bulkSha256(BULK_BYTES) });
  },
);

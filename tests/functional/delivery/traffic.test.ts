import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { policyMessage, SCOPE, type TestSandbox } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { VARIANTS, VariantGateway } from "../../support/variants.ts";

/**
 * Policies that change ten times a second under traffic. The long form (npm run test:traffic) takes 100 sandboxes for a
 * minute.
 */
const SANDBOXES = Number(process.env["OPENSHELL_TEST_SANDBOXES"] ?? 4);
const SECONDS = Number(process.env["OPENSHELL_TEST_SECONDS"] ?? 6);
const CHANGES_PER_SECOND = 10;
/** Between two looks of a supervisor that polls: short of the time between two changes of one sandbox. Milliseconds. */
const LOOK_MS = Math.max(100, (SANDBOXES / CHANGES_PER_SECOND) * 250);
/** Pauses grow with the number of sandboxes, so that the machine is never what is measured. Seconds. */
const PAUSE_S = Math.max(4, SANDBOXES) / 800;
const CHUNK_MS = Math.max(50, SANDBOXES * 5);
const CHUNKS = Math.floor((SECONDS * 1_000) / CHUNK_MS);
/** How long a policy is in force at least, so that requests fall between two changes on a busy machine as well. */
const HOLD_MS = 100;
/** What may pass between the wall clocks of two processes' measurements, milliseconds. */
const MARGIN_MS = 5;

const policy = (flip: string) => `
version: 1
network_policies:
  steady:
    endpoints:
      - { host: steady.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "/**" }]
  flip:
    endpoints:
      - { host: flip.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, rules: [{ allow: { method: ${flip}, path: "/**" } }] }
    binaries: [{ path: "/**" }]
`;
const OPEN = policyMessage(policy("GET"));
const SHUT = policyMessage(policy("POST"));

/**
 * Lines: `steady STATUS CONNECTIONS [BODY]`, `flip ASKED ANSWERED STATUS [BODY]` (milliseconds; status 0: cut), both with
 * the body of a refusal, and `download BYTES` last.
 */
const TRAFFIC = `
import http.client, threading, time
end = time.time() + ${SECONDS + 1}
lock = threading.Lock()
def say(*words):
    with lock: print(*words, flush=True)
def why(status, body):
    return "" if status == 200 else body.decode().strip()
def steady():
    connection = http.client.HTTPSConnection("steady.example-allowed.com")
    opened = 0
    while time.time() < end:
        # Closed in order by the other side, it would be opened again without a word.
        opened += connection.sock is None
        connection.request("GET", "/x")
        answer = connection.getresponse()
        body = answer.read()
        say("steady", answer.status, opened, why(answer.status, body))
        time.sleep(${PAUSE_S * 4})
def flip():
    connection = http.client.HTTPSConnection("flip.example-allowed.com")
    while time.time() < end:
        asked = time.time()
        try:
            connection.request("GET", "/x")
            answer = connection.getresponse()
            body = answer.read()
            status = answer.status
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            status, body = 0, repr(error).encode()
        say("flip", int(asked * 1000), int(time.time() * 1000), status, why(status, body))
        time.sleep(${PAUSE_S})
def download():
    connection = http.client.HTTPSConnection("steady.example-allowed.com")
    connection.request("GET", "/chunks?count=${CHUNKS}&size=4096&interval=${CHUNK_MS}")
    say("download", len(connection.getresponse().read()))
threads = [threading.Thread(target=target) for target in (steady, flip, download)]
for thread in threads: thread.start()
for thread in threads: thread.join()
`;

interface Change {
  readonly open: boolean;
  /** When it was asked for, and when it was known to be in force. */
  readonly asked: number;
  readonly applied: number;
}

// Delivery and decisions are the same in both modes.
describe.skipIf(mode === "user")("under traffic", () => {
  let before: Inventory;
  let net: TestInternet;

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    await Promise.all([net.host("steady.example-allowed.com"), net.host("flip.example-allowed.com")]);
  }, 60_000);
  afterAll(
    async () => {
      await net?.[Symbol.asyncDispose]();
      await expectNoLeaks(before);
    },
    60_000 + SANDBOXES * 1_000,
  );

  test.each(VARIANTS)(
    "(%s) ten changes a second: nothing allowed fails, nothing refused passes, downloads are whole",
    {
      timeout: (2 * SECONDS + 150) * 1_000 + SANDBOXES * 3_000,
    },
    async (variant) => {
      await using started = await VariantGateway.start(net, variant, { lookMs: LOOK_MS });
      const sandboxes: TestSandbox[] = [];
      for (let at = 0; at < SANDBOXES; at++) sandboxes.push(await started.gateway.create({ policy: policy("GET") }));
      const running = sandboxes.map((sandbox) =>
        sandbox.exec(["/usr/bin/python3", "-c", TRAFFIC], { timeoutMs: (2 * SECONDS + 60) * 1_000 }),
      );
      await sleep(500);
      const end = Date.now() + (SECONDS - 1) * 1_000;
      const changes = await Promise.all(sandboxes.map((sandbox, at) => flipUntil(end, sandbox, at)));
      const judged = { open: 0, shut: 0 };
      for (const [at, { stdout, stderr, exitCode }] of (await Promise.all(running)).entries()) {
        const { name } = sandboxes[at]!;
        expect({ stderr, exitCode }, name).toEqual({ stderr: "", exitCode: 0 });
        const lines = stdout
          .trim()
          .split("\n")
          .map((line) => line.split(" "));
        expectUntouched(name, lines);
        judge(name, lines, changes[at]!, judged);
      }
      // The question was asked on both sides.
      expect(judged.open).toBeGreaterThan(SANDBOXES);
      expect(judged.shut).toBeGreaterThan(SANDBOXES);
      const total = changes.reduce((sum, { length }) => sum + length - 1, 0);
      console.log(`(${variant}) ${total} changes in ${SANDBOXES} sandboxes; ${judged.open} + ${judged.shut} judged`);
    },
  );
});

/** Sets a policy and waits until it decides. */
async function change(sandbox: TestSandbox, open: boolean): Promise<Change> {
  const asked = Date.now();
  const { version } = await sandbox.gateway.client.updateConfig({
    workspaceScope: SCOPE,
    sandbox: sandbox.name,
    policy: open ? OPEN : SHUT,
  } as never);
  while (((await sandbox.get()).status?.currentPolicyVersion ?? 0) < version) await sleep(5);
  return { open, asked, applied: Date.now() };
}

/** One policy after another; the sandboxes spread evenly, so that together they make the rate. */
async function flipUntil(end: number, sandbox: TestSandbox, at: number): Promise<readonly Change[]> {
  const made: Change[] = [{ open: true, asked: 0, applied: Date.now() }];
  const period = (SANDBOXES / CHANGES_PER_SECOND) * 1_000;
  await sleep((at / SANDBOXES) * period);
  while (Date.now() < end) {
    const started = Date.now();
    made.push(await change(sandbox, made.length % 2 === 0));
    await sleep(Math.max(HOLD_MS, period - (Date.now() - started)));
  }
  return made;
}

/** What no change is about. */
function expectUntouched(name: string, lines: readonly string[][]): void {
  const steady = lines.filter(([what]) => what === "steady");
  const refused = steady.filter(([, status]) => status !== "200");
  expect(
    refused.map((words) => words.join(" ")),
    name,
  ).toEqual([]);
  expect(steady.length, name).toBeGreaterThan(SECONDS / 4);
  expect(new Set(steady.map(([, , connection]) => connection)).size, `${name}: connections`).toBe(1);
  expect(lines.find(([what]) => what === "download")?.[1], name).toBe(String(CHUNKS * 4_096));
}

/** Requests that lie between two changes as a whole: they are decided by one policy for sure. */
function judge(
  name: string,
  lines: readonly string[][],
  made: readonly Change[],
  judged: { open: number; shut: number },
): void {
  expect(made.length, name).toBeGreaterThan(2);
  for (const [what, ...words] of lines) {
    if (what !== "flip") continue;
    const [asked, answered, status] = words.map(Number) as [number, number, number];
    const from = made.findLast(({ applied }) => applied + MARGIN_MS <= asked);
    const next = made.find((one) => from !== undefined && one.asked > from.asked);
    if (from === undefined || (next !== undefined && answered + MARGIN_MS > next.asked)) continue;
    const why = words.slice(3).join(" ");
    expect(status, `${name}: ${from.open ? "allowed" : "refused"} since ${from.applied}, asked ${asked}: ${why}`).toBe(
      from.open ? 200 : 403,
    );
    judged[from.open ? "open" : "shut"] += 1;
  }
}

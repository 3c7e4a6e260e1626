import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { policyMessage, SCOPE, TestGateway, type TestSandbox } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";

/**
 * Policies that change ten times a second under traffic. The long form (npm run test:traffic) takes 100 sandboxes for a
 * minute.
 */
const SANDBOXES = Number(process.env["OPENSHELL_TEST_SANDBOXES"] ?? 4);
const SECONDS = Number(process.env["OPENSHELL_TEST_SECONDS"] ?? 6);
const CHANGES_PER_SECOND = 10;
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
 * Lines: `steady STATUS CONNECTIONS`, `flip ASKED ANSWERED STATUS` (milliseconds; status 0: cut), and `download BYTES` last.
 */
const TRAFFIC = `
import http.client, threading, time
end = time.time() + ${SECONDS + 1}
lock = threading.Lock()
def say(*words):
    with lock: print(*words, flush=True)
def steady():
    connection = http.client.HTTPSConnection("steady.example-allowed.com")
    opened = 0
    while time.time() < end:
        # Closed in order by the other side, it would be opened again without a word.
        opened += connection.sock is None
        connection.request("GET", "/x")
        answer = connection.getresponse()
        body = answer.read()
        say("steady", answer.status, opened)
        if answer.status != 200: say("refused", body.decode())
        time.sleep(${PAUSE_S * 4})
def flip():
    connection = http.client.HTTPSConnection("flip.example-allowed.com")
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
        say("flip", int(asked * 1000), int(time.time() * 1000), status)
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
  let gateway: TestGateway;
  let sandboxes: TestSandbox[];

  beforeAll(
    async () => {
      before = takeInventory();
      net = await TestInternet.start();
      await Promise.all([net.host("steady.example-allowed.com"), net.host("flip.example-allowed.com")]);
      gateway = await TestGateway.start(net);
      sandboxes = [];
      for (let at = 0; at < SANDBOXES; at++) sandboxes.push(await gateway.create({ policy: policy("GET") }));
    },
    60_000 + SANDBOXES * 1_000,
  );
  afterAll(
    async () => {
      await gateway?.[Symbol.asyncDispose]();
      await net?.[Symbol.asyncDispose]();
      await expectNoLeaks(before);
    },
    60_000 + SANDBOXES * 1_000,
  );

  /** Sets a policy and waits until it decides. */
  async function change(sandbox: TestSandbox, open: boolean): Promise<Change> {
    const asked = Date.now();
    const { version } = await gateway.client.updateConfig({
      workspaceScope: SCOPE,
      sandbox: sandbox.name,
      policy: open ? OPEN : SHUT,
    } as never);
    while (((await sandbox.get()).status?.currentPolicyVersion ?? 0) < version) await sleep(5);
    return { open, asked, applied: Date.now() };
  }

  test("ten changes a second: nothing allowed fails, nothing refused passes, downloads are whole", {
    timeout: (2 * SECONDS + 90) * 1_000 + SANDBOXES * 1_000,
  }, async () => {
    const running = sandboxes.map((sandbox) =>
      sandbox.exec(["/usr/bin/python3", "-c", TRAFFIC], { timeoutMs: (2 * SECONDS + 60) * 1_000 }),
    );
    await sleep(500);
    const end = Date.now() + (SECONDS - 1) * 1_000;
    const changes = await Promise.all(
      sandboxes.map(async (sandbox, at) => {
        const made: Change[] = [{ open: true, asked: 0, applied: Date.now() }];
        // Spread evenly, so that together they make the rate.
        const period = (SANDBOXES / CHANGES_PER_SECOND) * 1_000;
        await sleep((at / SANDBOXES) * period);
        while (Date.now() < end) {
          const started = Date.now();
          made.push(await change(sandbox, made.length % 2 === 0));
          await sleep(Math.max(HOLD_MS, period - (Date.now() - started)));
        }
        return made;
      }),
    );
    const results = await Promise.all(running);
    const decided = { open: 0, shut: 0 };
    for (const [at, { stdout, stderr, exitCode }] of results.entries()) {
      const name = sandboxes[at]!.name;
      expect({ stderr, exitCode }, name).toEqual({ stderr: "", exitCode: 0 });
      const lines = stdout
        .trim()
        .split("\n")
        .map((line) => line.split(" "));
      expect(
        lines.filter(([what]) => what === "refused").map((words) => words.join(" ")),
        name,
      ).toEqual([]);
      const steady = lines.filter(([what]) => what === "steady");
      expect(steady.length, name).toBeGreaterThan(SECONDS / 4);
      expect(new Set(steady.map(([, status]) => status)), name).toEqual(new Set(["200"]));
      expect(new Set(steady.map(([, , connection]) => connection)).size, `${name}: connections`).toBe(1);
      expect(lines.find(([what]) => what === "download")?.[1], name).toBe(String(CHUNKS * 4_096));
      const made = changes[at]!;
      expect(made.length, name).toBeGreaterThan(2);
      for (const [what, ...numbers] of lines) {
        if (what !== "flip") continue;
        const [asked, answered, status] = numbers.map(Number) as [number, number, number];
        const from = made.findLast(({ applied }) => applied + MARGIN_MS <= asked);
        const next = made.find((one) => from !== undefined && one.asked > from.asked);
        // Only what lies between two changes as a whole is decided by one policy for sure.
        if (from === undefined || (next !== undefined && answered + MARGIN_MS > next.asked)) continue;
        expect(status, `${name}: ${from.open ? "allowed" : "refused"} since ${from.applied}, asked ${asked}`).toBe(
          from.open ? 200 : 403,
        );
        decided[from.open ? "open" : "shut"] += 1;
      }
    }
    // The question was asked on both sides.
    expect(decided.open).toBeGreaterThan(SANDBOXES);
    expect(decided.shut).toBeGreaterThan(SANDBOXES);
    const total = changes.reduce((sum, { length }) => sum + length - 1, 0);
    console.log(`${total} changes in ${SANDBOXES} sandboxes; ${decided.open} + ${decided.shut} requests judged`);
  });
});

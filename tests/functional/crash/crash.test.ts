import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestGateway } from "../../support/api.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { OPENSHELL } from "../../support/openshell.ts";
import { newSecret } from "../../support/secrets.ts";
import { allowedMs } from "../../support/slowness.ts";

/** The whole product while parts of it are killed, as a person with a command line sees it. */

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - host: api.example-allowed.com
        port: 443
        protocol: rest
        enforcement: enforce
        access: read-only
        credential_binding: { provider: model }
    binaries: [{ path: "/**" }]
`;

/**
 * A line every 25 ms, printed and kept in a file: a number, the process, the time and what a request gave. Waits at most
 * 5 s for an answer.
 */
const WORKLOAD = `
import os, sys, time, urllib.request
key = os.environ["MODEL_API_KEY"]
for number in range(int(sys.argv[1])):
    request = urllib.request.Request("https://api.example-allowed.com/x", headers={"Authorization": "Bearer " + key})
    try:
        status = urllib.request.urlopen(request, timeout=5).status
    except Exception as error:
        status = type(error).__name__
    line = f"{number} {os.getpid()} {int(time.time() * 1000)} {status}"
    with open("/work/lines", "a") as file:
        file.write(line + "\\n")
    print(line, flush=True)
    time.sleep(0.025)
sys.exit(7)
`;
const LINES = 200;
const BACK_WITHIN_MS = 2_000;
/** A sandbox whose command has ended waits 30 s for somebody to take its output. */
const REMOVED_WITHIN_MS = 45_000;

let before: Inventory;
let net: TestInternet;
let api: TestHost;
let gateway: TestGateway;
let policy: string;
const key = newSecret("sk-model");
/** Authorization fields in order of arrival. */
const keys: (string | undefined)[] = [];

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  api = await net.host("api.example-allowed.com", {
    handler: (request, response) => {
      keys.push(request.headers.authorization);
      response.end("ok");
    },
  });
  gateway = await TestGateway.start(net);
  await gateway.createProvider("model", { MODEL_API_KEY: key });
  policy = gateway.user.home.write("policy.yaml", POLICY);
});

afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const names = async (): Promise<readonly string[]> =>
  (await gateway.user.ok(["sandbox", "list", "--names"], { timeoutMs: 60_000 })).trim().split("\n").filter(Boolean);

/** Pid of the gateway that runs now, if one does. */
function gatewayPid(): number | undefined {
  try {
    const record = readFileSync(join(gateway.folders.runtime, "gateway.json"), "utf8");
    return (JSON.parse(record) as { pid: number }).pid;
  } catch {
    return undefined;
  }
}

function kill(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(pid, "SIGKILL");
  } catch {
    // It is gone already.
  }
}

interface Line {
  readonly number: number;
  readonly pid: string;
  readonly time: number;
  readonly status: string;
}

interface Outcome {
  /** As the command kept them. */
  readonly lines: readonly Line[];
  readonly output: string;
  readonly code: number;
  readonly errors: string;
}

/** Runs the workload as `openshell run` does, and calls `strike` when 60 of its lines were seen. */
async function whileRunning(strike: () => Promise<void>): Promise<Outcome> {
  const folder = gateway.user.home.path(`work-${++runs}`);
  mkdirSync(folder);
  const child = gateway.user.spawn([
    ...["run", "--policy", policy, "--provider", "model", "--volume", `${folder}:/work`, "--"],
    ...["/usr/bin/python3", "-c", WORKLOAD, String(LINES)],
  ]);
  let output = "";
  let errors = "";
  const struck = Promise.withResolvers<void>();
  let begun = false;
  child.stdout!.on("data", (chunk: Buffer) => {
    output += String(chunk);
    if (begun || output.split("\n").length < 60) return;
    begun = true;
    strike().then(struck.resolve, struck.reject);
  });
  child.stderr!.on("data", (chunk: Buffer) => {
    errors += String(chunk);
  });
  const [code] = (await once(child, "close")) as [number];
  if (!begun) throw new Error(`the workload ended before its time (${code}): ${errors}${output}`);
  await struck.promise;
  const file = () => readFileSync(join(folder, "lines"), "utf8");
  await expect.poll(() => file().trim().split("\n").length, { timeout: 30_000 }).toBe(LINES);
  const lines = file()
    .trim()
    .split("\n")
    .map((line) => line.split(" "))
    .map(([number, pid, time, status]) => ({ number: Number(number), pid: pid!, time: Number(time), status: status! }));
  return { lines, output, code, errors };
}

let runs = 0;

/** One process wrote every line once and in order. */
function expectUndisturbed({ lines }: Outcome): void {
  const gap = lines.findIndex(({ number }, at) => number !== at);
  const pids = new Set(lines.map(({ pid }) => pid)).size;
  expect({ lines: lines.length, gap, pids }).toEqual({ lines: LINES, gap: -1, pids: 1 });
}

/** The command line gave the whole output and the status of the command. */
function expectWhole({ lines, output, code, errors }: Outcome): void {
  expect({ code, errors }).toEqual({ code: 7, errors: expect.not.stringContaining("error") });
  expect(output).toBe(lines.map(({ number, pid, time, status }) => `${number} ${pid} ${time} ${status}\n`).join(""));
}

/**
 * What a supervisor had taken of a pipe and not passed on is lost with it. The command line cannot know how much that
 * was: it gives the whole output and status, or says that it does not, and never a gap.
 */
function expectWholeOrTold(outcome: Outcome): void {
  if (outcome.code === 7) expectWhole(outcome);
  else {
    expect(outcome.code).toBe(1);
    expect(outcome.errors).toMatch(/error: .*output was lost.*\n {2}next: openshell logs run-/);
    const whole = outcome.lines.map((line) => Object.values(line).join(" ")).join("\n");
    expect(whole.startsWith(outcome.output.trim())).toBe(true);
  }
}

test("kill -9 of the host: the command and its output go on, nothing leaves meanwhile, back in 2 s", {
  timeout: 120_000,
}, async () => {
  keys.length = 0;
  let killedAt = 0;
  let quiet: { requests: number; bytes: number } | undefined;
  let atReturn: typeof quiet;
  const reached = () => {
    const { connections, requests } = api.received();
    return { requests: requests.length, bytes: connections.reduce((sum, { bytes }) => sum + bytes, 0) };
  };
  const result = await whileRunning(async () => {
    const hosts = gateway.hosts();
    expect(hosts).toHaveLength(1);
    killedAt = Date.now();
    kill(hosts[0]);
    // What was under way at that moment may still arrive.
    await sleep(20);
    quiet = reached();
    while (gateway.hosts().every((pid) => pid === hosts[0])) {
      atReturn = reached();
      expect(Date.now() - killedAt).toBeLessThan(10_000);
      await sleep(5);
    }
  });
  expectUndisturbed(result);
  expectWholeOrTold(result);
  expect(atReturn ?? quiet).toEqual(quiet);
  const back = result.lines.find(({ time, status }) => time > killedAt && status === "200");
  expect(back!.time - killedAt, "ms until the next answered request").toBeLessThanOrEqual(allowedMs(BACK_WITHIN_MS));
  // At most the request that was under way is lost.
  expect(result.lines.filter(({ status }) => status !== "200").length).toBeLessThanOrEqual(1);
  expect(new Set(keys)).toEqual(new Set([`Bearer ${key}`]));
  await expect.poll(names, { timeout: REMOVED_WITHIN_MS }).toEqual([]);
});

test("kill -9 of the gateway: no request fails, and the command's output and status are whole", {
  timeout: 120_000,
}, async () => {
  const result = await whileRunning(async () => {
    kill(gatewayPid());
    await names();
  });
  expectUndisturbed(result);
  expectWhole(result);
  expect(result.lines.filter(({ status }) => status !== "200")).toEqual([]);
  await expect.poll(names, { timeout: REMOVED_WITHIN_MS }).toEqual([]);
});

test("kill -9 of both at once", { timeout: 120_000 }, async () => {
  const result = await whileRunning(async () => {
    const hosts = gateway.hosts();
    kill(gatewayPid());
    for (const pid of hosts) kill(pid);
    await names();
  });
  expectUndisturbed(result);
  expectWholeOrTold(result);
  expect(result.lines.filter(({ status }) => status !== "200").length).toBeLessThanOrEqual(1);
  // Nobody took all of its output: it would go by itself after a while, as the test above waits for.
  for (const name of await names()) await gateway.user.ok(["sandbox", "delete", name]);
  expect(await names()).toEqual([]);
});

test("kill -9 of host and gateway in front of a terminal: it goes on where it was", { timeout: 120_000 }, async () => {
  const folder = gateway.user.home.path("work-terminal");
  mkdirSync(folder);
  const player = readFileSync(join(import.meta.dirname, "../run/terminal.py"), "utf8");
  const running = net.run(
    [
      ...["/usr/bin/python3", "-c", player, "24", "80", "[]", ...OPENSHELL],
      ...["run", "--policy", policy, "--provider", "model", "--volume", `${folder}:/work`, "--"],
      ...["/usr/bin/python3", "-c", WORKLOAD, String(LINES)],
    ],
    { cwd: gateway.user.home.path(), env: gateway.user.env, timeoutMs: 90_000 },
  );
  const kept = () => {
    try {
      return readFileSync(join(folder, "lines"), "utf8").trim().split("\n");
    } catch {
      return [];
    }
  };
  await expect.poll(() => kept().length, { timeout: 30_000 }).toBeGreaterThan(60);
  const hosts = gateway.hosts();
  kill(gatewayPid());
  for (const pid of hosts) kill(pid);
  const session = JSON.parse((await running).stdout) as { output: string; code: number; restored: boolean };
  expect(session, session.output.slice(-500)).toMatchObject({ code: 7, restored: true });
  expect(kept()).toHaveLength(LINES);
  expect(session.output).toContain(kept().at(-1)!);
});

test("kill -9 of the gateway at any moment of a run: the right answer or a clear error, and nothing is left", {
  timeout: 180_000,
}, async () => {
  const quiet = takeInventory([join(gateway.folders.state, "sandboxes"), join(gateway.folders.runtime, "s")]);
  const counts = { whole: 0, told: 0 };
  for (let moment = 0; moment < 400; moment += 25) {
    const running = gateway.user.run(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], {
      timeoutMs: 60_000,
    });
    await sleep(moment);
    kill(gatewayPid());
    const result = await running;
    const { exitCode, stdout, stderr } = result;
    if (exitCode === 3) {
      expect({ moment, stdout, stderr }).toMatchObject({ stdout: "out\n", stderr: expect.stringContaining("err\n") });
      counts.whole++;
    } else {
      expect({ moment, exitCode, stderr }).toMatchObject({ exitCode: 1, stderr: expect.stringMatching(/^error: .+/m) });
      // The next step stands on a line of its own, or in the gateway's sentence.
      expect(stderr).toMatch(/^ {2}next: .+|^error: .+\. \S.+/m);
      counts.told++;
    }
    await expect.poll(names, { timeout: REMOVED_WITHIN_MS }).toEqual([]);
  }
  expect(counts.whole, `${counts.told} told of an error`).toBeGreaterThan(0);
  await expect.poll(() => readdirSync(join(gateway.folders.state, "sandboxes"))).toEqual([]);
  // The gateway and its host are others than before.
  const left = await expectNoLeaks(quiet).then(
    () => "",
    (error: Error) => error.message,
  );
  const parts = left
    .split("\n")
    .filter((line) => !/gateway\.mjs|host\.mjs|\.sock |28\.55\.|127\.0\.0\.1|0100007F|^left behind/.test(line));
  expect(parts).toEqual([]);
});

test("kill -9 of the command line: the command goes on, and its sandbox goes with it", {
  timeout: 90_000,
}, async () => {
  const child = gateway.user.spawn(["run", "--", "sh", "-c", "echo ready; sleep 3"]);
  await once(child.stdout!, "data");
  const exited = once(child, "exit");
  kill(child.pid);
  await exited;
  expect(await names()).toHaveLength(1);
  await expect.poll(names, { timeout: REMOVED_WITHIN_MS }).toEqual([]);
});

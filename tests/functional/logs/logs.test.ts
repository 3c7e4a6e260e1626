import { once } from "node:events";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "/**" }]
`;

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;
let id: string;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  await net.host("api.example-allowed.com");
  openshell = TestOpenShell.create(net);
  const policy = openshell.home.write("policy.yaml", POLICY);
  const flags = ["--name", "dev", "--policy", policy, "-o", "json"];
  const made = await openshell.ok(["sandbox", "create", ...flags, "--", "sleep", "infinity"], { timeoutMs: 60_000 });
  ({ id } = JSON.parse(made) as { id: string });
});

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const ask = (...args: string[]) =>
  openshell.run(["sandbox", "exec", "dev", "--", "curl", "-sS", "-g", "--max-time", "10", ...args]);

/** Output of `logs` once a line matches. */
async function logged(pattern: RegExp, ...args: string[]): Promise<string> {
  let output = "";
  await expect
    .poll(
      async () => {
        output = await openshell.ok(["logs", "dev", ...args]);
        return output;
      },
      { timeout: 5_000 },
    )
    .toMatch(pattern);
  return output;
}

test("every decision is one line: who, where, by which rule, and why not", async () => {
  await ask("https://api.example-allowed.com/good");
  await ask("-X", "DELETE", "https://api.example-allowed.com/bad");
  await ask("https://other.example-denied.org/");
  const output = await logged(/other\.example-denied/);
  const curl = String.raw`/usr/bin/curl\(\d+\) -> `;
  expect(output).toMatch(new RegExp(`NET:OPEN .* ALLOWED ${curl}api\\.example-allowed\\.com:443 \\[policy:api `));
  expect(output).toMatch(new RegExp(`HTTP:GET .* ALLOWED ${curl}GET https://api\\.example-allowed\\.com/good `));
  expect(output).toMatch(
    new RegExp(`HTTP:DELETE .* DENIED ${curl}DELETE https://api\\.example-allowed\\.com/bad .*reason:.*not permitted`),
  );
  expect(output).toMatch(new RegExp(`NET:REFUSE .* DENIED ${curl}other\\.example-denied\\.org:443 .*reason:`));
  for (const line of output.trim().split("\n"))
    expect(line).toMatch(/^\[\d+\.\d{3}\] \[(sandbox|gateway)\] \[\w+ *\] /);
});

test("what the agent chose cannot forge a line, nor reach the terminal", async () => {
  await ask("https://api.example-allowed.com/%0a[0.000]%20[gateway]%20forged%1b[31m");
  await ask("-X", "B\u001b[31mAD", "https://api.example-allowed.com/method");
  await openshell.run([
    ...["sandbox", "exec", "dev", "--", "bash", "-c"],
    "cp /usr/bin/curl $'/tmp/a\\n[1.000] [gateway] forged\\e[31m' && $'/tmp/a\\n[1.000] [gateway] forged\\e[31m' -sS https://x.example-denied.org/",
  ]);
  const output = await logged(/x\.example-denied/);
  expect(output).not.toMatch(/^\[[01]\.000\]/m);
  expect(output).not.toContain("\u001b");
});

test("the newest lines, one source, one level, recent ones", async () => {
  for (let n = 0; n < 5; n++) await ask(`https://n${n}.example-denied.org/`);
  await logged(/n4\.example-denied/);
  const two = (await openshell.ok(["logs", "dev", "-n", "2"])).trim().split("\n");
  expect(two).toHaveLength(2);
  expect(two[1]).toContain("n4.example-denied");
  const gateway = await openshell.ok(["logs", "dev", "--source", "gateway"]);
  expect(gateway).not.toContain("[sandbox]");
  expect(await openshell.ok(["logs", "dev", "--since", "1h"])).toContain("n4.example-denied");
  const wrong = await openshell.run(["logs", "dev", "--since", "yesterday"]);
  expect([wrong.exitCode, wrong.stdout]).toEqual([2, ""]);
});

test("-f goes on with new lines and ends when the sandbox is removed", async () => {
  await openshell.ok(["sandbox", "create", "--name", "short", "--detach", "--", "sleep", "infinity"]);
  const following = openshell.spawn(["logs", "short", "-f"]);
  let output = "";
  let errors = "";
  following.stdout!.on("data", (chunk: Buffer) => {
    output += String(chunk);
  });
  following.stderr!.on("data", (chunk: Buffer) => {
    errors += String(chunk);
  });
  const ended = once(following, "close");
  for (const name of ["first", "second"]) {
    await openshell.run(["sandbox", "exec", "short", "--", "curl", "-sS", `https://${name}.example-denied.org/`]);
    await expect.poll(() => output, { timeout: 5_000 }).toContain(`${name}.example-denied.org`);
  }
  await openshell.ok(["sandbox", "delete", "short"]);
  expect([(await ended)[0], errors]).toEqual([0, ""]);
});

test("events are kept in files of the sandbox, for the owner alone", async () => {
  const folder = join(openshell.home.state, "openshell", "openshell", "sandboxes", id, "logs");
  const names = readdirSync(folder);
  const lines = names.find((name) => /^openshell\.\d{4}-\d\d-\d\d\.log$/.test(name));
  expect(lines, names.join(", ")).toBeDefined();
  expect(readFileSync(join(folder, lines!), "utf8")).toMatch(/DENIED .*other\.example-denied\.org:443/);
  for (const name of names) expect(statSync(join(folder, name)).mode & 0o077, name).toBe(0);
  expect(await openshell.ok(["logs", "dev"])).not.toContain("events were lost");
});

test("the log of a sandbox outlives its gateway", async () => {
  await openshell.ok(["gateway", "stop", "--sandboxes", "keep"]);
  await ask("https://after.example-denied.org/");
  await logged(/after\.example-denied/);
});

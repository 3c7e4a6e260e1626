import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pythonSdk, sdkMethodWorks, sdkRefusal } from "@openshell/api/python-sdk.ts";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestGateway } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { OPENSHELL } from "../../support/openshell.ts";
import { requiredProgram } from "../../support/programs.ts";
import { newSecret } from "../../support/secrets.ts";

/**
 * The official Python package, as it is published, against a gateway that it finds by itself. The checks are written in
 * Python (programs/) and run by one process; each is a test here.
 */

const programs = join(import.meta.dirname, "programs");
const RUN_LIMIT_MS = 180_000;

interface Outcome {
  readonly name: string;
  readonly error: string | null;
}

/** Names of the checks, by file, as the sources say them. */
const checks = readdirSync(programs)
  .filter((file) => file.endsWith(".py"))
  .map((file) => ({
    file: file.replace(".py", ""),
    names: [...readFileSync(join(programs, file), "utf8").matchAll(/^@\w+\.check\("(.+)"\)$/gm)].map((one) => one[1]!),
  }))
  .filter(({ names }) => names.length > 0);

const methods = Object.entries(pythonSdk);

let before: Inventory;
let net: TestInternet;
let gateway: TestGateway;
let shared: string | undefined;
/** How the process with the checks ended. */
let ended = "the checks did not run";
const outcomes = new Map<string, Outcome>();
let surface: readonly string[] = [];
let called: readonly string[] = [];

/** A folder for sandboxes with a `python` and the one package that exec_python needs inside. */
function packagesForSandboxes(packages: string): string {
  const folder = mkdtempSync(join(tmpdir(), "python-"));
  // Sandboxes made over TCP have no claim on their owner's files.
  chmodSync(folder, 0o755);
  mkdirSync(join(folder, "bin"));
  symlinkSync("/usr/bin/python3", join(folder, "bin", "python"));
  cpSync(join(packages, "cloudpickle"), join(folder, "packages", "cloudpickle"), { recursive: true });
  return folder;
}

beforeAll(async () => {
  const packages = requiredProgram("python-sdk");
  before = takeInventory();
  net = await TestInternet.start();
  const allowed = await net.host("api.example-allowed.com");
  const denied = await net.host("other.example-denied.org");
  shared = packagesForSandboxes(packages);
  gateway = await TestGateway.start(net, { gateway: { extra: `[local]\nvolume_roots = ["${shared}"]` } });
  const refusals = methods.filter(([, method]) => !sdkMethodWorks(method));
  const result = await net.run(["/usr/bin/python3", "-B", join(programs, "main.py")], {
    cwd: gateway.user.home.path(),
    timeoutMs: RUN_LIMIT_MS,
    env: {
      ...gateway.user.env,
      PYTHONPATH: packages,
      GRPC_VERBOSITY: "NONE",
      OPENSHELL_TEST_ALLOWED_HOST: allowed.name,
      OPENSHELL_TEST_ALLOWED_URL: allowed.url("/"),
      OPENSHELL_TEST_DENIED_URL: denied.url("/"),
      OPENSHELL_TEST_VOLUME: shared,
      OPENSHELL_TEST_SECRET: newSecret(),
      OPENSHELL_TEST_CLI: JSON.stringify(OPENSHELL),
      OPENSHELL_TEST_GATEWAY_PID: String(gateway.pid),
      OPENSHELL_TEST_NOT_BUILT: JSON.stringify(
        Object.fromEntries(refusals.map(([name, method]) => [name, sdkRefusal(method)])),
      ),
    },
  });
  ended = `exit ${result.exitCode ?? result.signal}${result.timedOut ? ", timed out" : ""}\n${result.stderr}`;
  for (const line of result.stdout.split("\n").filter((text) => text.startsWith("{"))) {
    const said = JSON.parse(line) as Outcome & { surface?: string[]; called?: string[] };
    if (said.surface !== undefined) surface = said.surface;
    else if (said.called !== undefined) called = said.called;
    else outcomes.set(said.name, said);
  }
}, RUN_LIMIT_MS + 60_000);

afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  if (shared !== undefined) rmSync(shared, { recursive: true, force: true });
  await expectNoLeaks(before);
});

describe.each(checks)("$file", ({ names }) => {
  test.each(names)("%s", (name) => {
    const outcome = outcomes.get(name);
    expect(outcome, ended).toBeDefined();
    if (outcome!.error !== null) throw new Error(outcome!.error);
  });
});

describe("the package as a whole", () => {
  test("every check of every file ran, and the process ended well", () => {
    expect(ended).toBe("exit 0\n");
    expect([...outcomes.keys()].sort()).toEqual(checks.flatMap(({ names }) => names).sort());
  });

  test("the compatibility table has every public method, and no other", () => {
    expect([...surface]).toEqual(methods.map(([name]) => name).sort());
  });

  test("every method that is said to work is called by a check", () => {
    const works = methods.filter(([, method]) => sdkMethodWorks(method)).map(([name]) => name);
    expect(works.filter((name) => !called.includes(name))).toEqual([]);
  });
});

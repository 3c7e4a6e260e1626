import { execFile } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { SandboxPhase } from "@openshell/api";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { buildFolder, GatewayProcess } from "../gateway/gateway-process.ts";
import { untilGone, workspaceScope } from "../gateway/sandboxes.ts";

/** A build whose init says that a layer is in force and does not put it there: what a broken kernel or a defect would look like. */

const native = resolve(import.meta.dirname, "../../../native/init");

const SABOTAGE = [
  {
    layer: "seccomp",
    call: "prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0",
    instead: "program.len == 0",
    finds: "no filter of system calls is in force",
  },
  {
    layer: "landlock",
    call: "syscall(SYS_landlock_restrict_self, ruleset, 0) < 0",
    instead: "ruleset == 0",
    finds: "a device node could be made",
  },
];

let folder: string;
let before: Inventory;

beforeAll(async () => {
  before = takeInventory();
  folder = mkdtempSync(join(tmpdir(), "breach-"));
  await Promise.all(SABOTAGE.map(build));
});
afterAll(async () => {
  rmSync(folder, { recursive: true, force: true });
  await expectNoLeaks(before);
});

/** The current build with another init. */
async function build({ layer, call, instead }: (typeof SABOTAGE)[number]): Promise<void> {
  const [dist, source] = [join(folder, layer), join(folder, `${layer}-source`)];
  mkdirSync(join(dist, "native"), { recursive: true });
  for (const name of readdirSync(buildFolder())) {
    if (name !== "native") symlinkSync(join(buildFolder(), name), join(dist, name));
  }
  symlinkSync(join(buildFolder(), "native", "openshell.node"), join(dist, "native", "openshell.node"));
  cpSync(native, source, { recursive: true });
  const file = join(source, "restrict.c");
  const text = readFileSync(file, "utf8");
  expect(text.split(call)).toHaveLength(2);
  writeFileSync(file, text.replace(call, instead));
  const files = readdirSync(source).filter((name) => name.endsWith(".c"));
  const args = ["-std=gnu11", "-D_GNU_SOURCE", "-static", "-o", join(dist, "native", "openshell-init"), ...files];
  await promisify(execFile)("cc", args, { cwd: source });
}

describe.each(SABOTAGE)("an init that claims $layer and leaves it out", ({ layer, finds }) => {
  test("starts nothing: ERROR with the reason, the report and a finding", async () => {
    await using gateway = new GatewayProcess();
    await gateway.started([], { OPENSHELL_DIST: join(folder, layer) });
    const client = gateway.local();
    const seen = join(gateway.home.folder, "seen");
    mkdirSync(seen);
    const driverConfig = { local: { volumes: [`${seen}:/seen`] } };
    await client.createSandbox({
      workspaceScope,
      name: "box",
      spec: { command: ["touch", "/seen/ran"], template: { driverConfig } },
    });
    const status = async () => (await client.getSandbox({ workspaceScope, name: "box" })).sandbox?.status;
    await expect.poll(async () => (await status())?.phase, { timeout: 20_000 }).toBe(SandboxPhase.ERROR);
    const conditions = new Map((await status())!.conditions.map((condition) => [condition.type, condition]));
    expect(conditions.get("Ready")).toMatchObject({ status: "False", reason: "IsolationBreached" });
    expect(conditions.get("Ready")?.message).toContain(`${layer}: ${finds}`);
    expect(conditions.get("Isolation")).toMatchObject({ status: "False", reason: "Reduced" });
    expect(existsSync(join(seen, "ran"))).toBe(false);
    const { sandbox } = await client.getSandbox({ workspaceScope, name: "box" });
    const report = JSON.parse(sandbox!.metadata!.annotations["openshell.dev/isolation"]!);
    expect(report.layers).toContainEqual(expect.objectContaining({ name: layer, enforced: false, tested: false }));
    const lines = async () =>
      (await client.getSandboxLogs({ workspaceScope, sandbox: "box" })).logs.map(({ message }) => message);
    await expect.poll(lines).toContainEqual(expect.stringMatching(/FINDING.*its isolation does not hold/));
    await client.deleteSandbox({ workspaceScope, name: "box" });
    await untilGone(client, "box");
    await gateway.end();
  }, 60_000);
});

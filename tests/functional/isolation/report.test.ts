import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { inMode, mode } from "../../support/mode.ts";
import { TestOpenShell } from "../../support/openshell.ts";

/** The isolation report where users see it, and what a minimum refuses. */

interface Layer {
  readonly name: string;
  readonly enforced: boolean;
  readonly tested: boolean;
  readonly detail: string;
}
interface Got {
  readonly phase: string;
  readonly annotations: Readonly<Record<string, string>>;
  readonly conditions: readonly { readonly type: string; readonly status: string; reason: string; message: string }[];
  readonly isolation: { readonly network_capture: string; readonly layers: readonly Layer[] } | null;
}

const CONFINED = ["namespaces", "root_view", "network_capture", "landlock", "no_new_privs", "capabilities", "seccomp"];
/** A layer that this mode never has, for a sandbox without limits. */
const ABSENT = inMode({ root: "limit_memory", user: "separate_ids" });

let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
});
afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
});

const create = (name: string, ...flags: string[]) =>
  openshell.run(["sandbox", "create", "--name", name, "--detach", ...flags, "--", "sleep", "infinity"]);
const get = (name: string) => openshell.json<Got>(["sandbox", "get", name]);
const condition = ({ conditions }: Got, type: string) => conditions.find((candidate) => candidate.type === type);
const layersOf = ({ isolation }: Got) => new Map((isolation?.layers ?? []).map((layer) => [layer.name, layer]));

describe("a sandbox's isolation report", () => {
  let got: Got;
  beforeAll(async () => {
    expect(
      (await create("plain", "--env", "LD_PRELOAD=/sandbox/evil.so", "--env", "PATH=/sandbox/bin:/usr/bin:/bin"))
        .exitCode,
    ).toBe(0);
    got = await get("plain");
  });

  test("says of every confining layer that it is in force and was tried", () => {
    const layers = layersOf(got);
    expect(CONFINED.filter((name) => layers.get(name)?.enforced !== true || !layers.get(name)?.tested)).toEqual([]);
    expect(got.isolation?.network_capture).toBe(inMode({ root: "sk_lookup", user: "nft" }));
  });
  test("says what this way of running the gateway cannot give, and why", () => {
    const layers = layersOf(got);
    const missing = [...layers.values()].filter(({ enforced }) => !enforced);
    if (mode === "user") {
      expect(missing.map(({ name }) => name)).toEqual(expect.arrayContaining(["workload_identity", "separate_ids"]));
      expect(layers.get("workload_identity")?.detail).toContain("does not run as root");
      expect(condition(got, "Isolation")).toMatchObject({ status: "False", reason: "Reduced" });
    } else {
      for (const name of ["workload_identity", "separate_ids", "limit_pids"])
        expect(layers.get(name)?.enforced).toBe(true);
    }
    for (const { name } of missing) expect(condition(got, "Isolation")?.message).toContain(name);
    expect(condition(got, "Isolation")?.message).toMatch(/tested: .*landlock/);
  });
  test("is a table for people, and not among the annotations", async () => {
    const text = await openshell.ok(["sandbox", "get", "plain"]);
    expect(text).toMatch(/seccomp:? +in force, tested/);
    expect(text).not.toContain("openshell.dev/isolation");
    expect(got.annotations).toEqual({});
  });
  test("is one line of openshell status", async () => {
    const status = await openshell.json<{ isolation: string }>(["status"]);
    expect(status.isolation).toMatch(/1 sandbox/);
    expect(await openshell.ok(["status"])).toContain(status.isolation);
  });
  test("is told as an event when something is missing", async () => {
    const lines = (await openshell.ok(["logs", "plain"])).split("\n").filter((line) => line.includes("FINDING"));
    const reduced = [...layersOf(got).values()].some(({ enforced }) => !enforced);
    expect(lines.filter((line) => line.includes("isolation layer"))).toHaveLength(reduced ? 1 : 0);
  });
  test("is made anew by the next start, whatever the agent left in its home", async () => {
    const spoil = "mkdir -p bin; for p in probe openshell-init sh; do echo 'echo 0' >bin/$p; chmod +x bin/$p; done";
    await openshell.ok([
      "sandbox",
      "exec",
      "--name",
      "plain",
      "--env",
      "PATH=/usr/bin:/bin",
      "--",
      "/bin/sh",
      "-c",
      `cd /sandbox; ${spoil}`,
    ]);
    await openshell.ok(["sandbox", "stop", "plain"]);
    await openshell.ok(["sandbox", "start", "plain"]);
    const layers = layersOf(await get("plain"));
    expect(CONFINED.filter((name) => !layers.get(name)?.tested)).toEqual([]);
  });
});

describe("a minimum of isolation", () => {
  test("that is in force lets a sandbox start", async () => {
    const made = await create("enough", "--minimum-isolation", "confined,freezer");
    expect(made).toMatchObject({ exitCode: 0 });
    const got = await get("enough");
    expect(got.annotations).toEqual({ "openshell.dev/minimum-isolation": "confined,freezer" });
  });
  test("that is not in force refuses before anything runs, naming layer, reason and next step", async () => {
    const folder = join(openshell.home.folder, "seen");
    mkdirSync(folder);
    const args = ["sandbox", "create", "--name", "less", "--detach", "--minimum-isolation", `confined,${ABSENT}`];
    const result = await openshell.run([...args, "--volume", `${folder}:/seen`, "--", "touch", "/seen/ran"]);
    expect(result.exitCode).toBe(1);
    expect(result.stderr).toContain("IsolationBelowMinimum");
    expect(result.stderr).toContain(ABSENT);
    const got = await get("less");
    expect(got.phase).toBe("Error");
    const ready = condition(got, "Ready");
    expect(ready).toMatchObject({ status: "False", reason: "IsolationBelowMinimum" });
    expect(ready?.message).toContain(
      inMode({ root: "limit_memory (this sandbox has no such layer)", user: "Run the gateway as root" }),
    );
    expect(layersOf(got).get("landlock")).toMatchObject({ enforced: true, tested: true });
    expect(existsSync(join(folder, "ran"))).toBe(false);
  });
  test("that names no layer is refused at once", async () => {
    const result = await create("unknown", "--minimum-isolation", "moat");
    expect(result.exitCode).not.toBe(0);
    expect(result.stderr).toContain('unknown isolation layer "moat"');
    expect((await openshell.run(["sandbox", "get", "unknown"])).exitCode).not.toBe(0);
  });
  test("in a policy file is refused with where it belongs", async () => {
    const file = join(openshell.home.folder, "policy.yaml");
    writeFileSync(file, "version: 1\nminimum_isolation: [landlock]\n");
    const result = await create("in-policy", "--policy", file);
    expect(result.exitCode).not.toBe(0);
    expect(result.stderr).toContain("--minimum-isolation");
  });
});

import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { mode } from "../../support/mode.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { quotaDisk } from "../../support/quota-disk.ts";
import { makeRootFs } from "../../support/root-fs.ts";

/** A disk limit that the file system itself keeps: the gateway's state on one with project quotas. */

const LIMIT = 8 * 2 ** 20;
const disk = mode === "root" ? quotaDisk(256 * 2 ** 20) : "a user may set no quotas";
const unavailable = typeof disk === "string" ? ` (not here: ${disk})` : "";

interface Got {
  readonly isolation: { readonly layers: readonly { name: string; enforced: boolean; detail: string }[] };
}

describe.skipIf(typeof disk === "string")(`a disk limit by project quota${unavailable}`, () => {
  let net: TestInternet;
  let openshell: TestOpenShell;
  let state: string;
  beforeAll(async () => {
    net = await TestInternet.start();
    state = join((disk as Exclude<typeof disk, string>).folder, "state");
    mkdirSync(state, { mode: 0o700 });
    openshell = TestOpenShell.create(net, {
      env: { XDG_STATE_HOME: state },
      gateway: { extra: `[local]\nsandbox_disk_limit = ${LIMIT}` },
    });
    makeRootFs(openshell.home.path("root"));
    openshell.home.write(
      "policy.yaml",
      "version: 1\nfilesystem_policy: { include_workdir: true, read_only: [/usr, /lib, /proc, /etc, /srv], read_write: [/sandbox, /tmp, /srv/data] }\n",
    );
    for (const [name, ...flags] of [["full"], ["other"], ["image", "--from", "root", "--policy", "policy.yaml"]]) {
      const create = ["sandbox", "create", "--name", name!, "--detach", ...flags, "--", "sleep", "infinity"];
      await openshell.ok(create, { timeoutMs: 60_000 });
    }
  }, 120_000);
  afterAll(async () => {
    await openshell?.[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    if (typeof disk !== "string") disk[Symbol.dispose]();
  });

  const sh = (name: string, script: string) => openshell.run(["sandbox", "exec", name, "--", "sh", "-c", script]);
  const fill = (file: string) => `head -c 100000000 /dev/zero > ${file}; echo $?; stat -c %s ${file}`;

  test("is told in the isolation report, and can be demanded", async () => {
    const { isolation } = await openshell.json<Got>(["sandbox", "get", "full"]);
    expect(isolation.layers.filter(({ name }) => name.startsWith("disk_"))).toMatchObject([
      { name: "disk_limit", enforced: true, detail: "project quota of 8 MiB" },
      { name: "disk_quota", enforced: true },
    ]);
    await openshell.ok(["run", "--minimum-isolation", "disk_quota", "--", "true"]);
  });

  test("ends writes at once, in the home and in the layer over an image, and leaves the sandbox running", async () => {
    for (const [name, file] of [
      ["full", "~/big"],
      ["image", "/srv/data/big"],
    ] as const) {
      const { stdout, stderr } = await sh(name, fill(file));
      expect(stderr, name).toMatch(/Disk quota exceeded|No space left/);
      const [status, size] = stdout.trim().split("\n").map(Number);
      expect([status, size! > LIMIT / 2, size! <= LIMIT], name).toEqual([1, true, true]);
      expect(await sh(name, `rm ${file}; echo small > ${file}; cat ${file}`)).toMatchObject({ stdout: "small\n" });
    }
  });

  test("cannot be left by the agent, and is not another sandbox's", async () => {
    const { stdout, stderr } = await sh("full", `chattr -p 0 ~ ; chattr -P ~; ${fill("~/big")}`);
    expect(stderr).toMatch(/Disk quota exceeded|No space left/);
    expect(Number(stdout.trim().split("\n")[1])).toBeLessThanOrEqual(LIMIT);
    expect((await sh("other", "head -c 4000000 /dev/zero > ~/mine && stat -c %s ~/mine")).stdout).toBe("4000000\n");
  });

  test("holds after stop and start, and goes with the sandbox", async () => {
    await openshell.ok(["sandbox", "stop", "full"]);
    await openshell.ok(["sandbox", "start", "full"]);
    expect((await sh("full", fill("~/more"))).stderr).toMatch(/Disk quota exceeded|No space left/);
    for (const name of ["full", "other", "image"]) await openshell.ok(["sandbox", "delete", name]);
    expect(readdirSync(join(state, "openshell/openshell/sandboxes"))).toEqual([]);
  });
});

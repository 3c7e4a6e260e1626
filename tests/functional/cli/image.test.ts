import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { inMode } from "../../support/modes.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { makeRootFs, packRootFs, saveImage } from "../../support/root-fs.ts";

const POLICY = `
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, /lib, /proc, /etc, /srv]
  read_write: [/sandbox, /tmp, /dev/null, /srv/data]
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: /usr/bin/curl }]
`;

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;
let folder: string;
let archive: string;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  await net.host("api.example-allowed.com");
  openshell = TestOpenShell.create(net);
  openshell.home.write("policy.yaml", POLICY);
  folder = openshell.home.path("root");
  makeRootFs(folder);
  archive = openshell.home.path("root.tar.gz");
  packRootFs(folder, archive, "--use-compress-program=gzip -1");
  // The first command starts the gateway, which the others find.
  await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
});

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

/** The gateway's own folder. */
const state = () => join(openshell.home.state, "openshell", "openshell");

const run = (from: string, ...command: readonly string[]) =>
  openshell.run(["run", "--from", from, "--policy", "policy.yaml", "--", ...command], { timeoutMs: 60_000 });

test("a folder, by a relative path: the program, its outputs and its exact status", async () => {
  const result = await run("./root", "sh", "-c", "cat /srv/marker; echo err >&2; exit 7");
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([7, "of the image\n", "err\n"]);
});

test("an archive: the network is captured and inspected as everywhere, by name and without any variable", async () => {
  const ask = (options: string) => `curl -sS -o /dev/null -w '%{http_code}\\n' --max-time 10 ${options}`;
  const result = await run(
    "root.tar.gz",
    "sh",
    "-c",
    `${ask("https://api.example-allowed.com/")}; env -i ${ask("https://api.example-allowed.com/")}; ${ask("https://other.example.com/")}`,
  );
  expect(result.stdout).toBe("200\n200\n403\n");
});

test("an image of docker save: layers with removals, its user, variables and folder", async () => {
  const upper = openshell.home.path("upper");
  const umask = process.umask(0o022);
  mkdirSync(join(upper, "srv"), { recursive: true });
  mkdirSync(join(upper, "app"));
  process.umask(umask);
  writeFileSync(join(upper, "srv/.wh.marker"), "");
  writeFileSync(join(upper, "srv/second"), "");
  chmodSync(join(upper, "srv/second"), 0o644);
  const saved = openshell.home.path("saved.tar");
  const config = { User: "app", Env: ["PATH=/opt/tool/bin:/usr/bin", "GREETING=hello"], WorkingDir: "/app" };
  saveImage(saved, [folder, upper], config);
  const script = "id -u; ls /srv; pwd; echo $GREETING $PATH; touch here && echo written";
  const result = await run("saved.tar", "sh", "-c", script);
  const uid = inMode({ root: "1234", user: String(process.getuid!()) });
  const path =
    "/opt/tool/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin:/sandbox/.local/bin:/sandbox/bin";
  expect(result).toMatchObject({
    exitCode: 0,
    stderr: "",
    stdout: `${uid}\ndata\nsecond\n/app\nhello ${path}\nwritten\n`,
  });
});

test("an archive through the gateway's port: copied once, taken, and gone from the gateway's folder", async () => {
  const registered = join(openshell.home.config, "openshell/gateways/openshell/metadata.json");
  const { gateway_endpoint } = JSON.parse(readFileSync(registered, "utf8")) as { gateway_endpoint: string };
  const through = ["run", "--gateway-endpoint", gateway_endpoint, "--policy", "policy.yaml", "--from"];
  const result = await openshell.run([...through, "root.tar.gz", "--", "cat", "/srv/marker"], { timeoutMs: 60_000 });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([0, "of the image\n", ""]);
  expect(readdirSync(join(state(), "staging"))).toEqual([]);
  const refused = await openshell.run([...through, "root", "--", "true"]);
  expect([refused.exitCode, refused.stderr]).toEqual([2, expect.stringContaining("tar -C")]);
});

test("a kept sandbox: exec, stop, start; what it wrote stays, and goes with it", async () => {
  const create = ["sandbox", "create", "--name", "dev", "--from", "root.tar.gz", "--policy", "policy.yaml", "--detach"];
  await openshell.ok([...create, "--", "sleep", "infinity"], { timeoutMs: 60_000 });
  const exec = (script: string) => openshell.ok(["sandbox", "exec", "dev", "--", "sh", "-c", script]);
  expect(await exec("echo kept > /srv/data/note; cat /srv/marker")).toBe("of the image\n");
  await openshell.ok(["sandbox", "stop", "dev"]);
  await openshell.ok(["sandbox", "start", "dev"]);
  expect(await exec("cat /srv/data/note")).toBe("kept\n");
  const shown = await openshell.ok(["sandbox", "get", "dev"]);
  if (inMode({ root: false, user: true })) expect(shown).toContain("image_owners");
  await openshell.ok(["sandbox", "delete", "dev"]);
  expect(readdirSync(join(state(), "sandboxes"))).toEqual([]);
  // Kept for the next one for a while; both archives of this file are there once.
  expect(readdirSync(join(state(), "images")).filter((name) => !name.startsWith("."))).toHaveLength(2);
});

test("what cannot be a root is refused with what to do instead, and nothing stays", async () => {
  writeFileSync(openshell.home.path("text.tar"), "this is no archive, whatever its name says".repeat(50));
  const cases: [from: string, says: RegExp][] = [
    ["missing.tar", /--from "missing.tar" does not exist/],
    ["ubuntu:24.04", /pulls no images; unpack one with `docker export`/],
    ["text.tar", /it is no tar archive/],
    ["/", /holds files of the gateway/],
    ["/proc", /holds devices, processes or sockets/],
  ];
  for (const [from, says] of cases) {
    const result = await run(from, "true");
    expect(result.stderr, from).toMatch(says);
    expect(result.exitCode, from).not.toBe(0);
  }
  expect((await openshell.ok(["sandbox", "list", "--names"])).trim()).toBe("");
});

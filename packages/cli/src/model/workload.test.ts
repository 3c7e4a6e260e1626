import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";

let gateway: FakeGateway;
let folder: string;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  gateway.answers.set("CreateSandbox", { error: { code: "invalid_argument", message: "stop here" } });
  folder = realpathSync(mkdtempSync(join(tmpdir(), "from-")));
  mkdirSync(join(folder, "root"));
  writeFileSync(join(folder, "x.tar.gz"), "");
  symlinkSync("x.tar.gz", join(folder, "latest.tar"));
});
afterEach(async () => {
  await gateway[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

const from = async (text: string) => {
  const result = await runCommandLine(["sandbox", "create", "--from", text], { cwd: folder, env: gateway.env });
  const message = gateway.calls.findLast((call) => call.method === "CreateSandbox")?.message;
  return { ...result, template: (message?.["spec"] as { template?: unknown } | undefined)?.template };
};

test.each([
  ["./root", "root"],
  ["root", "root"],
  ["x.tar.gz", "x.tar.gz"],
  ["latest.tar", "x.tar.gz"],
  ["root/../root/", "root"],
])("--from %s is a path of this machine, absolute and without links", async (text, path) => {
  expect((await from(text)).template).toEqual({ driverConfig: { local: { root: join(folder, path) } } });
});

test.each(["ubuntu:24.04", "registry.example.com/agent@sha256:00", "debian"])(
  "--from %s is the name of an image, which the gateway judges",
  async (text) => expect((await from(text)).template).toEqual({ image: text }),
);

test.each(["missing.tar", "./missing", "~/missing", "/missing/root.tgz"])(
  "--from %s is refused before anything is asked: it is a path and not there",
  async (text) => {
    const { code, stderr } = await from(text);
    expect([code, stderr]).toEqual([2, expect.stringContaining("does not exist")]);
    expect(gateway.calls).toEqual([]);
  },
);

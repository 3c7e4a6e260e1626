import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
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

describe("with a gateway that is reached over the network", () => {
  const TOKEN = "t".repeat(43);
  let slot: string;
  beforeEach(() => {
    slot = join(folder, "slot");
    mkdirSync(slot);
    writeFileSync(join(folder, "x.tar.gz"), "packed");
    gateway.answers.set("BeginRootfsTarStaging", {
      message: { stagingToken: TOKEN, uploadPath: join(slot, "x.tar.gz"), maxBytes: "100" },
    });
  });
  const remote = async (text: string, ...more: readonly string[]) => {
    const endpoint = ["--gateway-endpoint", await gateway.tcpEndpoint()];
    const argv = ["sandbox", "create", ...endpoint, "--from", text, ...more];
    const result = await runCommandLine(argv, { cwd: folder, env: gateway.env });
    const create = gateway.calls.find((call) => call.method === "CreateSandbox")?.message["spec"];
    return { ...result, template: (create as { template?: unknown } | undefined)?.template };
  };

  test("an archive is announced, copied to where the gateway says, and named by its token", async () => {
    expect((await remote("latest.tar")).template).toEqual({
      driverConfig: { local: { rootfs_tar_staging_token: TOKEN } },
    });
    expect(gateway.calls.find((call) => call.method === "BeginRootfsTarStaging")?.message).toEqual({
      workspaceScope: { workspace: "default" },
      fileName: "x.tar.gz",
      sizeBytes: "6",
    });
    expect(readFileSync(join(slot, "x.tar.gz"), "utf8")).toBe("packed");
  });

  test("what is there already is not written over, link or file", async () => {
    symlinkSync(join(folder, "victim"), join(slot, "x.tar.gz"));
    const { code, stderr } = await remote("x.tar.gz");
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/cannot be copied to .* \(EEXIST\)[\s\S]*archive_not_staged/),
    ]);
    expect(existsSync(join(folder, "victim"))).toBe(false);
    expect(gateway.calls.map(({ method }) => method)).not.toContain("CreateSandbox");
  });

  test("a gateway on another machine is told apart, with what to do instead", async () => {
    rmSync(slot, { recursive: true });
    const { code, stderr } = await remote("x.tar.gz");
    expect([code, stderr]).toEqual([1, expect.stringMatching(/is not on this machine[\s\S]*image_roots/)]);
  });

  test("a folder is refused before anything is asked, with how to pack it", async () => {
    const { code, stderr } = await remote("root");
    expect([code, stderr]).toEqual([2, expect.stringMatching(/is a folder of this machine[\s\S]*tar -C/)]);
    expect(gateway.calls).toEqual([]);
  });

  test("nothing is copied for a command that is wrong in another way", async () => {
    expect((await remote("x.tar.gz", "--label", "nonsense")).code).toBe(2);
    expect(gateway.calls).toEqual([]);
  });
});

import { execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SandboxPhase } from "@openshell/api";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { SCOPE, TestGateway, TestSandbox } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { mode } from "../../support/mode.ts";
import { targetsOf } from "../../support/rpc-attack.ts";

/** `[local] volume_roots`: what callers may mount who are not the gateway's own user, over TLS with a certificate. */

const OTHER_UID = 54_321;
let net: TestInternet;
let gateway: TestGateway;
/** The folder that is a volume root, what is outside of it, and the caller's certificate. */
let root = "";
let outside = "";
let credentials = "";
let endpoint = "";

// Another user of the machine is what root alone can be.
describe.skipIf(mode !== "root")("callers of another user", () => {
  beforeAll(async () => {
    root = mkdtempSync(join(tmpdir(), "root-"));
    outside = mkdtempSync(join(tmpdir(), "outside-"));
    credentials = mkdtempSync(join(tmpdir(), "certs-"));
    for (const folder of [root, outside, credentials]) chmodSync(folder, 0o755);
    mkdirSync(join(root, "project"));
    writeFileSync(join(root, "project/file"), "theirs\n");
    writeFileSync(join(root, "project/.envrc"), "owner\n");
    for (const path of ["project", "project/file", "project/.envrc"]) chownSync(join(root, path), OTHER_UID, OTHER_UID);
    mkdirSync(join(root, "roots-own"));
    writeFileSync(join(root, "roots-own/file"), "roots\n", { mode: 0o600 });
    writeFileSync(join(outside, "secret"), "secret\n");
    symlinkSync(outside, join(root, "link"));
    net = await TestInternet.start();
    gateway = await TestGateway.start(net, { gateway: { extra: `[local]\nvolume_roots = [${JSON.stringify(root)}]` } });
    const { user } = await targetsOf(gateway);
    if (!("tls" in user) || user.tls === undefined || !("port" in user)) throw new Error("no TLS endpoint");
    endpoint = `https://${user.host}:${user.port}`;
    const folder = join(gateway.user.home.config, "openshell/gateways", gateway.folders.name, "mtls");
    for (const name of ["ca.crt", "tls.crt", "tls.key"]) {
      copyFileSync(join(folder, name), join(credentials, name));
      chownSync(join(credentials, name), OTHER_UID, OTHER_UID);
    }
  }, 90_000);
  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    for (const folder of [root, outside, credentials]) rmSync(folder, { recursive: true, force: true });
  });

  /** A request as the other user; `HTTP status body`. */
  const call = async (method: string, body: object): Promise<string> => {
    const file = (name: string) => join(credentials, name);
    const { stdout } = await net.run(
      [
        "setpriv",
        `--reuid=${OTHER_UID}`,
        `--regid=${OTHER_UID}`,
        "--clear-groups",
        "curl",
        "-sS",
        "-m",
        "60",
        "-w",
        " %{http_code}",
      ]
        .concat("--cacert", file("ca.crt"), "--cert", file("tls.crt"), "--key", file("tls.key"))
        .concat(
          "-H",
          "content-type: application/json",
          "-d",
          JSON.stringify(body),
          `${endpoint}/openshell.v1.OpenShell/${method}`,
        ),
    );
    return stdout;
  };
  const create = (name: string, volumes: readonly string[]) =>
    call("CreateSandbox", {
      workspaceScope: { workspace: "default" },
      name,
      spec: { command: ["sleep", "86400"], template: { driverConfig: { local: { volumes } } } },
    });

  const ready = async (name: string): Promise<TestSandbox> => {
    const { sandbox } = await gateway.client.getSandbox({ workspaceScope: SCOPE, name });
    const box = new TestSandbox(gateway, name, sandbox!.metadata!.id);
    await box.phase(SandboxPhase.READY);
    return box;
  };

  test("mount what lies below a root, with the ids of the folder's owner, guarded", async () => {
    expect(await create("theirs", [`${root}/project:/work`])).toMatch(/ 200$/);
    const box = await ready("theirs");
    const script = "cd /work; cat file; echo more >> file; echo evil >> .envrc; id -u; stat -c %u file";
    const { stdout } = await box.sh(script);
    const [text, uid, owner] = stdout.trim().split("\n");
    expect([text, owner]).toEqual(["theirs", uid]);
    expect(readFileSync(join(root, "project/file"), "utf8")).toBe("theirs\nmore\n");
    expect(readFileSync(join(root, "project/.envrc"), "utf8")).toBe("owner\n");
    await box.sh("echo new > /work/new");
    expect(statSync(join(root, "project/new")).uid).toBe(OTHER_UID);
    await box.delete();
  }, 60_000);

  test("see of root's own files what everybody sees, and write none", async () => {
    expect(await create("roots", [`${root}/roots-own:/work`])).toMatch(/ 200$/);
    const box = await ready("roots");
    const { stdout } = await box.sh("cat /work/file; echo x > /work/file; echo x > /work/new; true");
    expect(stdout).toBe("");
    expect(readFileSync(join(root, "roots-own/file"), "utf8")).toBe("roots\n");
    await box.delete();
  }, 60_000);

  test("mount nothing else: outside, above, through links and .., other names of it, rw-all", async () => {
    const state = gateway.folders.state;
    for (const source of [
      outside,
      join(root, ".."),
      `${root}/link`,
      `${root}/link/secret`,
      `${root}/../${outside.slice(5)}`,
      `${root}x`,
      "/",
      state,
    ]) {
      const answer = await create("refused", [`${source}:/work`]);
      expect(answer, source).toMatch(/ 4\d\d$/);
      expect(answer, source).toMatch(/volume|mount|symbolic link|holds/i);
    }
    expect(await create("refused", [`${root}/project:/work:rw-all`])).toMatch(/start-up files.* 403$/);
    const { sandboxes } = await gateway.client.listSandboxes({ workspaceScope: SCOPE });
    expect(sandboxes).toEqual([]);
    expect(execFileSync("ls", [outside], { encoding: "utf8" })).toBe("secret\n");
  }, 60_000);
});

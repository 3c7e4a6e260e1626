import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { parsePolicy, policyToProto } from "@openshell/policy";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ImageRoot } from "./image-root.ts";

const NETWORK =
  "network_policies: { a: { endpoints: [{ host: a.example.com, port: 443 }], binaries: [{ path: /x }] } }";
const POLICY = `version: 1\n${NETWORK}\n`;

const IDS = { uid: 1000, gid: 1000 };

function policyOf(text: string): SandboxPolicy {
  const parsed = parsePolicy(text);
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.violations));
  return policyToProto(parsed.policy);
}

describe("an image root", () => {
  let outside: string;
  let folder: string;
  const put = (path: string, content: string): void => {
    mkdirSync(join(folder, path, ".."), { recursive: true });
    writeFileSync(join(folder, path), content);
  };
  beforeEach(() => {
    outside = mkdtempSync(join(tmpdir(), "image-root-"));
    folder = join(outside, "root");
    mkdirSync(folder);
  });
  afterEach(() => rmSync(outside, { recursive: true, force: true }));
  const found = () => new ImageRoot(folder, IDS).policy;

  describe("offers its policy", () => {
    it("is missing where the image has none, and in a root of the host's system folders", () => {
      expect(found().case).toBe("missing");
      put("etc/openshell/other.yaml", "");
      expect(found().case).toBe("missing");
      expect(new ImageRoot("", IDS).policy.case).toBe("missing");
    });
    it.each(["etc/openshell/policy.yaml", "etc/navigator/policy.yaml"])("from %s", (path) => {
      put(path, POLICY);
      expect(found()).toEqual({ case: "policy", value: policyOf(POLICY) });
    });
    it("takes the newer of the two names, even when that is unusable", () => {
      put("etc/navigator/policy.yaml", POLICY);
      put("etc/openshell/policy.yaml", "version: 7\n");
      expect(found()).toMatchObject({ case: "invalid", value: { code: "image_policy_invalid" } });
    });
    it("reads it once: what changes later does not count", () => {
      const root = new ImageRoot(folder, IDS);
      put("etc/openshell/policy.yaml", POLICY);
      expect(root.policy.case).toBe("policy");
      rmSync(join(folder, "etc"), { recursive: true });
      expect(root.policy.case).toBe("policy");
    });
    it("follows the image's links inside it, and none of them out of it", () => {
      writeFileSync(join(outside, "policy.yaml"), POLICY);
      mkdirSync(join(folder, "etc/openshell"), { recursive: true });
      put("opt/policy.yaml", POLICY);
      symlinkSync("/opt/policy.yaml", join(folder, "etc/openshell/policy.yaml"));
      expect(found().case).toBe("policy");
      rmSync(join(folder, "etc/openshell/policy.yaml"));
      // From inside, the folder above the root is the root itself.
      symlinkSync("../../../policy.yaml", join(folder, "etc/openshell/policy.yaml"));
      expect(found()).toMatchObject({ case: "invalid" });
      rmSync(join(folder, "etc/openshell/policy.yaml"));
      symlinkSync(join(outside, "policy.yaml"), join(folder, "etc/openshell/policy.yaml"));
      expect(found()).toMatchObject({ case: "invalid" });
    });
    it.each<[string, (path: string) => void]>([
      ["a folder", (path) => mkdirSync(path)],
      ["a pipe, which nobody waits for", (path) => void execFileSync("mkfifo", [path])],
      ["too large", (path) => writeFileSync(path, `${POLICY}#${"x".repeat(1 << 20)}`)],
      ["a link to nowhere", (path) => symlinkSync("/nowhere", path)],
      ["no policy", (path) => writeFileSync(path, "- 1")],
      ["no YAML", (path) => writeFileSync(path, "{")],
    ])("is invalid, not missing, where the file is %s", (_, make) => {
      mkdirSync(join(folder, "etc/openshell"), { recursive: true });
      make(join(folder, "etc/openshell/policy.yaml"));
      const { case: kind, value } = found() as { case: string; value: { message: string } };
      expect(kind).toBe("invalid");
      expect(value.message).toContain("/etc/openshell/policy.yaml");
      expect(value.message.length).toBeLessThanOrEqual(1_024);
    });
  });

  it("leads where the image's links lead, not where the host's do", async () => {
    for (const path of ["usr/bin", "opt"]) mkdirSync(join(folder, path), { recursive: true });
    put("usr/bin/python3.99", "");
    symlinkSync("python3.99", join(folder, "usr/bin/python3"));
    symlinkSync("usr/bin", join(folder, "bin"));
    const root = new ImageRoot(folder, IDS);
    expect(await root.realPath("/bin/python3")).toBe("/usr/bin/python3.99");
    await expect(root.realPath("/usr/bin/env")).rejects.toThrow();
    expect(await new ImageRoot("", IDS).realPath("/usr/bin/env")).toMatch(/env|busybox|coreutils/);
  });

  describe("prepares the candidate", () => {
    const prepare = (policy: SandboxPolicy | undefined, root = folder) => new ImageRoot(root, IDS).prepare(policy);

    it("adds what programs need, as far as the image has it", () => {
      for (const path of ["usr", "etc", "var/log"]) mkdirSync(join(folder, path), { recursive: true });
      symlinkSync("usr/lib", join(folder, "lib"));
      const result = prepare(policyOf(POLICY));
      expect(result.case).toBe("policy");
      expect((result.value as SandboxPolicy).filesystem).toMatchObject({
        includeWorkdir: true,
        readOnly: ["/usr", "/etc", "/var/log", "/proc", "/dev/urandom"],
        readWrite: ["/tmp", "/dev/null"],
      });
    });
    it("removes and moves nothing of the author's", () => {
      mkdirSync(join(folder, "usr"));
      const filesystem = "filesystem_policy: { include_workdir: false, read_only: [/tmp, /opt], read_write: [/usr] }";
      const result = prepare(policyOf(`${POLICY}${filesystem}\n`));
      expect((result.value as SandboxPolicy).filesystem).toMatchObject({
        includeWorkdir: false,
        readOnly: ["/tmp", "/opt", "/proc", "/dev/urandom"],
        readWrite: ["/usr", "/dev/null"],
      });
    });
    it("leaves what is complete, what has no network rules, and roots of the host's system folders", () => {
      const complete = prepare(policyOf(POLICY)).value as SandboxPolicy;
      expect(prepare(complete).case).toBe("unchanged");
      expect(prepare(policyOf("version: 1")).case).toBe("unchanged");
      expect(prepare(policyOf(POLICY), "").case).toBe("unchanged");
    });
    it("refuses ids that the sandbox was not launched with: the image's policy came too late for them", () => {
      const ids = (user: string, group = "") =>
        prepare(policyOf(`version: 1\nprocess: { run_as_user: "${user}", run_as_group: "${group}" }\n`));
      expect(ids("1000", "1000").case).toBe("unchanged");
      expect(ids("sandbox", "sandbox").case).toBe("unchanged");
      for (const [user, group, field] of [
        ["1500", "1000", "run_as_user"],
        ["1000", "1500", "run_as_group"],
      ] as const) {
        expect(ids(user, group)).toMatchObject({
          case: "failure",
          value: { code: "identity_refused", message: expect.stringContaining(field), retryable: false },
        });
      }
    });
    it("fails, in bounds, for what no policy can be made of, and says whether another attempt may help", () => {
      expect(prepare(undefined)).toMatchObject({
        case: "failure",
        value: { code: "policy_missing", retryable: false },
      });
      const bad = create(SandboxPolicySchema, {
        version: 1,
        networkPolicies: Object.fromEntries(
          Array.from({ length: 50 }, (_, at) => [`${"r".repeat(200)}${at}`, { endpoints: [{ host: "", port: 0 }] }]),
        ),
      });
      const result = prepare(bad) as { value: { code: string; message: string; retryable: boolean } };
      expect(result.value).toMatchObject({ code: "invalid_policy", retryable: false });
      expect(result.value.message.length).toBeLessThanOrEqual(1_024);
      expect(prepare(policyOf(POLICY), join(outside, "gone"))).toMatchObject({
        case: "failure",
        value: { code: "image_unavailable", retryable: true },
      });
    });
  });
});

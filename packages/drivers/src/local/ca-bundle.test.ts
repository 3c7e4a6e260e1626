import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { systemRoots, TrustCache, trustFiles, writeTrustFiles } from "./ca-bundle.ts";

/** Certificates only need to be PEM here; the JVM gets real ones below. */
function pem(text: string): string {
  return `# ${text}\n-----BEGIN CERTIFICATE-----\n${Buffer.from(text).toString("base64")}\n-----END CERTIFICATE-----\n`;
}
const KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";

function has(program: string): boolean {
  try {
    execFileSync(program, ["-version"], { stdio: "ignore" });
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== "ENOENT";
  }
}

describe("trustFiles", () => {
  it("merges system, additional and inspection roots, each once, certificates only", () => {
    const files = trustFiles(pem("one") + pem("two"), pem("two") + KEY + pem("three"), pem("own"));
    const names = [...files.bundlePem.matchAll(/-----BEGIN CERTIFICATE-----\n(.*)\n/g)].map((match) =>
      Buffer.from(match[1]!, "base64").toString(),
    );
    expect(names).toEqual(["one", "two", "three", "own"]);
    expect(files.bundlePem).not.toContain("PRIVATE");
    expect(files.caPem).toContain(Buffer.from("own").toString("base64"));
  });
  it("refuses an inspection CA that is not one certificate", () => {
    expect(() => trustFiles(pem("one"), "", KEY)).toThrow(/0 certificates/);
    expect(() => trustFiles("", "", pem("a") + pem("b"))).toThrow(/2 certificates/);
  });
  it("finds the system's roots in the first place that has them", () => {
    expect(systemRoots((path) => (path === "/etc/ssl/cert.pem" ? "X" : undefined))).toBe("X");
    expect(systemRoots(() => undefined)).toBe("");
  });
  it("gave a sandbox no roots at all when the gateway had no descriptors", () => {
    const full = () => {
      throw Object.assign(new Error("EMFILE: too many open files"), { code: "EMFILE" });
    };
    expect(() => systemRoots(full)).toThrow("EMFILE");
  });
});

describe("writeTrustFiles", () => {
  it("makes files that the agent can read under the gateway's umask of 077", async () => {
    const folder = mkdtempSync(join(tmpdir(), "trust-"));
    const umask = process.umask(0o077);
    try {
      await writeTrustFiles(folder, trustFiles("", "", pem("own")));
      const modes = readdirSync(folder).map((name) => [name, statSync(join(folder, name)).mode & 0o777]);
      expect(modes).toEqual([
        ["ca-bundle.pem", 0o644],
        ["cacerts.jks", 0o644],
        ["openshell-ca.pem", 0o644],
      ]);
    } finally {
      process.umask(umask);
      rmSync(folder, { recursive: true });
    }
  });
});

describe("TrustCache", () => {
  it("answers equal roots with the same files and forgets the oldest", () => {
    const cache = new TrustCache();
    const first = cache.get("", "", pem("a"));
    expect(cache.get("", "", pem("a"))).toBe(first);
    for (let i = 0; i < 16; i++) cache.get("", "", pem(`other ${i}`));
    expect(cache.get("", "", pem("a"))).not.toBe(first);
  });
});

describe.skipIf(!has("keytool") || !has("openssl"))("Java trust store", () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "jks-"));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it("is read by the JVM's own tool, which checks the digest", () => {
    const args = [
      "req",
      "-x509",
      "-newkey",
      "ec",
      "-pkeyopt",
      "ec_paramgen_curve:P-256",
      "-nodes",
      "-subj",
      "/CN=Probe Root",
    ];
    execFileSync("openssl", [...args, "-keyout", join(folder, "k"), "-out", join(folder, "c")], { stdio: "ignore" });
    const own = readFileSync(join(folder, "c"), "utf8");
    writeFileSync(join(folder, "store.jks"), trustFiles(systemRoots(), "", own).javaTrustStore);
    const listing = execFileSync(
      "keytool",
      ["-list", "-keystore", join(folder, "store.jks"), "-storepass", "changeit"],
      {
        encoding: "utf8",
        stdio: ["ignore", "pipe", "ignore"],
        env: { ...process.env, LC_ALL: "C", JAVA_TOOL_OPTIONS: "" },
      },
    );
    expect(listing).toContain("trustedCertEntry");
    const roots = systemRoots().match(/BEGIN CERTIFICATE/g)?.length ?? 0;
    expect(listing).toContain(`Your keystore contains ${roots + 1} entr`);
  }, 30_000);
});

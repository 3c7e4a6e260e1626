import { X509Certificate } from "node:crypto";
import { beforeAll, describe, expect, test } from "vitest";
import { MAX_LEAVES } from "../limits.ts";
import { createCa, type TestCa } from "../testing/fixture.ts";
import { LeafMint } from "./leaf.ts";
import { splitPem, TrustStore } from "./trust.ts";

let ca: TestCa;
let mint: LeafMint;

beforeAll(async () => {
  ca = await createCa("Inspection");
  mint = await LeafMint.create(ca);
});

describe("leaf certificates", () => {
  test.each(["api.example.com", "1.2.3.4", "2001:db8::1", `${"a".repeat(60)}.${"b".repeat(60)}.example.com`])(
    "for %s are signed, named and short-lived",
    async (host) => {
      const leaf = new X509Certificate(await mint.certificate(host));
      const root = new X509Certificate(ca.certificatePem);
      expect(leaf.verify(root.publicKey)).toBe(true);
      expect(leaf.checkIssued(root)).toBe(true);
      expect(leaf.ca).toBe(false);
      expect(host.includes(":") || /^\d/.test(host) ? leaf.checkIP(host) : leaf.checkHost(host)).toBe(host);
      expect(leaf.checkHost("other.example.com")).toBeUndefined();
      const days = (Date.parse(leaf.validTo) - Date.parse(leaf.validFrom)) / 86_400_000;
      expect(days).toBeLessThanOrEqual(45);
      // Subject and authority key identifiers: Python 3.13 insists on the latter.
      expect(leaf.raw.includes(Buffer.from([0x06, 0x03, 0x55, 0x1d, 0x0e]))).toBe(true);
      expect(leaf.raw.includes(Buffer.from([0x06, 0x03, 0x55, 0x1d, 0x23]))).toBe(true);
      expect(leaf.keyUsage).toEqual(["1.3.6.1.5.5.7.3.1"]);
    },
  );

  test("have serials of their own and one key", async () => {
    const [a, b] = [
      new X509Certificate(await mint.certificate("a.example")),
      new X509Certificate(await mint.certificate("a.example")),
    ];
    expect(a.serialNumber).not.toBe(b.serialNumber);
    expect(a.publicKey.equals(b.publicKey)).toBe(true);
  });

  test("are made once for a host, dropped oldest first, and renewed before they end", async () => {
    let now = Date.now();
    const own = await LeafMint.create(ca, () => now);
    const first = await own.context("first.example");
    expect(await own.context("first.example")).toBe(first);
    for (let i = 0; i < MAX_LEAVES; i += 1) await own.context(`n${i}.example`);
    expect(await own.context("first.example")).not.toBe(first);
    const kept = await own.context("kept.example");
    now += 20 * 86_400_000;
    expect(await own.context("kept.example")).not.toBe(kept);
  }, 30_000);

  test("need a CA and the key that belongs to it", async () => {
    const other = await createCa("Other");
    const leaf = await ca.issue("a.example");
    await expect(LeafMint.create({ ...ca, privateKeyPem: other.privateKeyPem })).rejects.toMatchObject({
      code: "inspection_ca_invalid",
    });
    await expect(LeafMint.create({ certificatePem: leaf.cert, privateKeyPem: leaf.key })).rejects.toMatchObject({
      code: "inspection_ca_invalid",
    });
    await expect(LeafMint.create({ certificatePem: "", privateKeyPem: "" })).rejects.toMatchObject({
      code: "inspection_ca_invalid",
    });
  });
});

describe("trust", () => {
  test("is built once for one addition", () => {
    const store = new TrustStore(() => []);
    expect(store.context(ca.certificatePem)).toBe(store.context(ca.certificatePem));
    expect(store.context("")).not.toBe(store.context(ca.certificatePem));
  });

  test("the roots of the runtime and the machine are there", () => {
    expect(() => new TrustStore().context("")).not.toThrow();
  });

  test("a bundle may hold comments; a block that is no certificate is an error", () => {
    expect(splitPem(`# comment\n${ca.certificatePem}\nnoise\n${ca.certificatePem}`)).toHaveLength(2);
    expect(() =>
      new TrustStore(() => []).context("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
    ).toThrow();
  });
});

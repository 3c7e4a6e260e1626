import { describe, expect, it } from "vitest";
import { createVault, type SecretContext } from "./vault.ts";

const context: SecretContext = { purpose: "credential", workspace: "w", owner: "p", key: "k", version: 3n };

describe("the vault", () => {
  const vault = createVault(new Uint8Array(32).fill(1));

  it("opens what it sealed, bytes and text, and never seals the same way twice", () => {
    const sealed = vault.seal(context, "välue");
    expect(vault.open(context, sealed).toString("utf8")).toBe("välue");
    expect(vault.open(context, vault.seal(context, new Uint8Array([0, 255, 1])))).toEqual(Buffer.of(0, 255, 1));
    expect(vault.open(context, vault.seal(context, ""))).toHaveLength(0);
    expect(vault.seal(context, "välue")).not.toEqual(sealed);
    expect(Buffer.from(sealed).includes("lue")).toBe(false);
  });

  it("opens into memory that holds nothing else", () => {
    const plain = vault.open(context, vault.seal(context, "value"));
    expect(plain.buffer.byteLength).toBe(plain.length);
  });

  it.each([
    ["purpose", { purpose: "secret" }],
    ["workspace", { workspace: "v" }],
    ["owner", { owner: "q" }],
    ["key", { key: "K" }],
    ["version", { version: 2n }],
    ["fields run together", { workspace: "wp", owner: "" }],
  ] as const)("refuses another %s", (_name, change) => {
    const sealed = vault.seal(context, "value");
    expect(() => vault.open({ ...context, ...change }, sealed)).toThrow(
      /cannot be opened: it was altered or belongs elsewhere/,
    );
  });

  it("refuses every flipped bit and every cut, and tells another key apart", () => {
    const sealed = Buffer.from(vault.seal(context, "value"));
    for (let index = 0; index < sealed.length; index++) {
      const altered = Buffer.from(sealed);
      altered[index]! ^= 0x10;
      expect(() => vault.open(context, altered)).toThrow(/cannot be opened/);
      expect(() => vault.open(context, sealed.subarray(0, index))).toThrow(/cannot be opened/);
    }
    const other = createVault(new Uint8Array(32).fill(2));
    expect(() => other.open(context, sealed)).toThrow(/another key-encryption key/);
  });
});

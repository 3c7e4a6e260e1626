import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";

const files = readdirSync(import.meta.dirname, { recursive: true, encoding: "utf8" }).filter(
  (name) => /\.(ts|js)$/.test(name) && !/\.(test|d)\.ts$/.test(name),
);
const allowed =
  /^(?:@bufbuild\/protobuf(?:\/.*)?|@connectrpc\/connect|@openshell\/base\/catalogue\/api\.ts|\.{1,2}\/.*)$/;

describe("packages/api is pure", () => {
  it("finds its files", () => expect(files).toContain("errors.ts"));

  it.each(files)(
    "%s imports neither Node built-ins nor anything but protobuf, Connect and the catalogue of errors",
    (name) => {
      const text = readFileSync(join(import.meta.dirname, name), "utf8");
      const imports = [...text.matchAll(/(?:from|import)\s*\(?\s*"([^"]+)"/g)].map((match) => match[1]!);
      expect(imports.filter((source) => !allowed.test(source))).toEqual([]);
      if (!name.startsWith("generated")) expect(text).not.toMatch(/\b(?:Buffer|process)\./);
    },
  );
});

import { describe, expect, it } from "vitest";
import { breach, specifiers } from "./check-dependencies.ts";

describe("dependency rule", () => {
  it("keeps gateway and supervisor apart", () => {
    expect(breach("gateway/src/main.ts", "@openshell/supervisor")).toMatch(/may not import supervisor/);
    expect(breach("supervisor/src/main.ts", "@openshell/gateway/x.ts")).toMatch(/may not import gateway/);
  });
  it("keeps pure packages pure, also through base", () => {
    expect(breach("policy/src/a/b.ts", "node:fs")).toMatch(/may not import node:fs/);
    expect(breach("policy/src/parse.ts", "@openshell/base")).toMatch(/of base only/);
    expect(breach("policy/src/parse.ts", "@openshell/base/errors.ts")).toBeUndefined();
    expect(breach("ocsf/src/writer.ts", "node:fs")).toBeUndefined();
  });
  it("does not let a relative path reach into a sibling package", () => {
    expect(breach("cli/src/main.ts", "../../gateway/src/main.ts")).toMatch(/leaves the package/);
  });
  it("sees static, dynamic, bare and re-exporting imports", () => {
    const text =
      'import "a";\nimport type { X } from "b";\nexport * from "c";\nconst y = await import("d");\nimport {\n  z,\n} from "e";\n';
    expect(specifiers(text).map(({ specifier }) => specifier)).toEqual(
      expect.arrayContaining(["a", "b", "c", "d", "e"]),
    );
  });
});

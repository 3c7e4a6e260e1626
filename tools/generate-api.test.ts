import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "..");
const run = (script: string, folder: string) =>
  promisify(execFile)(process.execPath, [join(folder, "tools", script), "--check"]);

describe("generated files", () => {
  it("packages/api/src/generated is what buf makes of proto/", { timeout: 60_000 }, async () => {
    await run("generate-api.ts", root);
  });

  it("docs/compatibility.md is what the compatibility table says", { timeout: 60_000 }, async () => {
    await run("generate-api-compatibility.ts", root);
  });
});

describe("freshness checks", () => {
  let copy = "";
  beforeAll(() => {
    copy = mkdtempSync(join(tmpdir(), "openshell-fresh-"));
    for (const path of ["proto", "buf.yaml", "buf.gen.yaml", "package.json", "packages/api", "docs/compatibility.md"]) {
      cpSync(join(root, path), join(copy, path), {
        recursive: true,
        filter: (source) => !source.includes("node_modules"),
      });
    }
    for (const script of ["generate-api.ts", "generate-api-compatibility.ts", "python-sdk-section.ts"])
      cpSync(join(root, "tools", script), join(copy, "tools", script));
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  });
  afterAll(() => rmSync(copy, { recursive: true, force: true }));

  it("fail when a definition, an output file or the page was edited alone", { timeout: 60_000 }, async () => {
    const edit = async (path: string, script: string) => {
      const file = join(copy, path);
      const before = readFileSync(file, "utf8");
      writeFileSync(file, before.replace("HealthRequest", "HealthRequested").replace("| Health |", "| Healthy |"));
      await expect(run(script, copy)).rejects.toThrow(/stale|Failure|Command failed/);
      writeFileSync(file, before);
      await run(script, copy);
    };
    await edit("packages/api/src/generated/openshell_pb.d.ts", "generate-api.ts");
    await edit("docs/compatibility.md", "generate-api-compatibility.ts");
    writeFileSync(join(copy, "packages/api/src/generated/leftover_pb.js"), "");
    await expect(run("generate-api.ts", copy)).rejects.toThrow("leftover_pb.js");
  });
});

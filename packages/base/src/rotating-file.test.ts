import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { RotatingFile } from "./rotating-file.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-log-"));
  path = join(folder, "some.log");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

it("keeps a bounded number of bounded files, with no line cut", () => {
  using file = RotatingFile.open(path, { fileBytes: 100, oldFiles: 2 });
  for (let index = 0; index < 60; index++) {
    file.write(`line ${index}\n`);
    file.flush();
  }
  expect(existsSync(`${path}.3`)).toBe(false);
  const names = [`${path}.2`, `${path}.1`, path];
  for (const name of names) expect(statSync(name).size).toBeLessThan(120);
  const lines = names.flatMap((name) => readFileSync(name, "utf8").trimEnd().split("\n"));
  expect(lines.at(-1)).toBe("line 59");
  const numbers = lines.map((line) => Number(/^line (\d+)$/.exec(line)![1]));
  expect(numbers).toEqual(numbers.map((_, index) => numbers[0]! + index));
});

it("loses lines on a full disk, and nothing else", () => {
  using file = RotatingFile.open("/dev/full", { fileBytes: 100, oldFiles: 0 });
  file.write("a line\n");
  expect(() => file.flush()).not.toThrow();
});

it("keeps its descriptor and its old files when a new file cannot be made", () => {
  using file = RotatingFile.open(path, { fileBytes: 10, oldFiles: 2 });
  file.write("first and longer than a file\n");
  file.flush();
  // A folder stands where the next file would be opened.
  mkdirSync(`${path}.next`);
  for (let turn = 0; turn < 3; turn++) {
    file.write("lost\n");
    file.flush();
  }
  expect(readFileSync(path, "utf8")).toContain("first");
  rmSync(`${path}.next`, { recursive: true });
  file.write("later\n");
  file.flush();
  expect(readFileSync(path, "utf8")).toContain("3 log writes were lost");
  expect(readFileSync(`${path}.1`, "utf8")).toContain("first");
});

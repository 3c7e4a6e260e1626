/**
 * Generates packages/api/src/generated from proto/ with `buf generate`. With `--check` it writes nothing and fails when the committed output is
 * stale. Output goes to a temporary folder first and only files that differ are written, so running processes never see a half-made tree.
 */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "..");
const target = join(root, "packages/api/src/generated");

/** The buf binary of this platform's package: its install script, which would link it, does not run here. */
function bufBinary(): string {
  const name = `buf${process.platform === "win32" ? ".exe" : ""}`;
  const path = join(root, "node_modules/@bufbuild", `buf-${process.platform}-${process.arch}`, "bin", name);
  if (!existsSync(path)) throw new Error(`${path} is missing: run npm install`);
  return path;
}

/** All files below a folder as path → content; a missing folder is an empty one. */
function readTree(folder: string): Map<string, string> {
  const files = new Map<string, string>();
  if (!existsSync(folder)) return files;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    files.set(path.slice(folder.length + 1), readFileSync(path, "utf8"));
  }
  return files;
}

/** Runs buf into a temporary folder and returns what it made. */
function generate(): Map<string, string> {
  const scratch = mkdtempSync(join(tmpdir(), "openshell-generate-"));
  try {
    const path = [dirname(process.execPath), join(root, "node_modules/.bin"), process.env["PATH"] ?? ""].join(
      delimiter,
    );
    execFileSync(bufBinary(), ["generate", "--output", scratch], {
      cwd: root,
      stdio: "inherit",
      env: { ...process.env, PATH: path },
    });
    return readTree(join(scratch, "packages/api/src/generated"));
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

const wanted = generate();
const present = readTree(target);
const stale = [...wanted].filter(([path, text]) => present.get(path) !== text).map(([path]) => path);
const extra = [...present.keys()].filter((path) => !wanted.has(path));

if (process.argv.includes("--check")) {
  if (stale.length + extra.length > 0) {
    console.error(`generated API code is stale: ${[...stale, ...extra].join(", ")}\nrun: npm run generate`);
    process.exitCode = 1;
  }
} else {
  for (const path of stale) {
    const file = join(target, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, wanted.get(path)!);
  }
  for (const path of extra) rmSync(join(target, path));
  console.log(`generated ${wanted.size} files, ${stale.length} changed, ${extra.length} removed`);
}

/**
 * Holds the dependency rule of the packages: which package may import which, what pure packages may import, and that no
 * lock file names a registry. Prints each breach with its line; exits 1 when there is one.
 */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** Package → the packages of ours that it may import. What is missing here may import nothing. */
export const allowed: Readonly<Record<string, readonly string[]>> = {
  base: [],
  api: ["base"],
  rpc: ["base", "api"],
  policy: ["base", "api"],
  // Endpoints of credentials are host patterns and path selectors as in policies; a second implementation could disagree.
  credentials: ["base", "api", "policy"],
  ocsf: ["base", "api"],
  profiles: ["base", "api"],
  boundary: ["base"],
  drivers: ["base", "api", "boundary"],
  gateway: ["base", "api", "rpc", "policy", "credentials", "ocsf", "profiles", "boundary", "drivers"],
  supervisor: ["base", "api", "rpc", "policy", "credentials", "ocsf", "boundary", "drivers"],
  cli: ["base", "api", "rpc", "policy"],
};

/** Packages without input, output or clock, and their files that are the exception. */
export const pure: Readonly<Record<string, readonly string[]>> = {
  api: [],
  policy: [],
  credentials: [],
  ocsf: ["writer.ts"],
  profiles: [],
};

/** The files of `base` that pure packages may use, since they import nothing from Node themselves. */
const pureBase = [
  "@openshell/base/escape.ts",
  "@openshell/base/catalogue/api.ts",
  "@openshell/base/catalogue/policies.ts",
  "@openshell/base/catalogue/denials.ts",
  "@openshell/base/errors.ts",
  "@openshell/base/clock.ts",
  "@openshell/base/log-fields.ts",
];

function* sources(folder: string): Generator<string> {
  for (const name of readdirSync(folder)) {
    if (name === "node_modules" || name === "generated" || name === "dist" || name === "testdata") continue;
    const path = join(folder, name);
    if (statSync(path).isDirectory()) yield* sources(path);
    else if (path.endsWith(".ts")) yield path;
  }
}

/** Import and export specifiers of one file with their lines. */
export function specifiers(text: string): { readonly line: number; readonly specifier: string }[] {
  const found: { line: number; specifier: string }[] = [];
  const pattern =
    /(?:^|[;{}\s])(?:import|export)\s[^'"`;]*?from\s*["']([^"']+)["']|import\s*\(\s*["']([^"']+)["']|^import\s*["']([^"']+)["']/gm;
  for (const match of text.matchAll(pattern)) {
    const line = text.slice(0, match.index).split("\n").length;
    found.push({ line, specifier: match[1] ?? match[2] ?? match[3] ?? "" });
  }
  return found;
}

/** What is wrong with importing `specifier` from `file` (relative to packages/), or undefined. */
export function breach(file: string, specifier: string): string | undefined {
  const [name = "", , ...rest] = file.split("/");
  const test = file.endsWith(".test.ts") || file.includes("/testing/") || file.includes("/bench/");
  const within = rest.join("/");
  if (specifier.startsWith("@openshell/")) {
    const target = specifier.split("/")[1] ?? "";
    if (target === name) return undefined;
    if (!(allowed[name] ?? []).includes(target) && !test) return `${name} may not import ${target}`;
    if (
      target === "base" &&
      name in pure &&
      !(pure[name] ?? []).includes(within) &&
      !test &&
      !pureBase.includes(specifier)
    ) {
      return `pure package ${name} may import of base only ${pureBase.map((path) => path.slice(16)).join(", ")}`;
    }
    return undefined;
  }
  if (specifier.startsWith(".")) {
    const resolved = join("/", dirname(file), specifier);
    if (!resolved.startsWith(`/${name}/`)) return `relative import leaves the package: ${specifier}`;
    return undefined;
  }
  if (specifier.startsWith("node:") && name in pure && !test && !(pure[name] ?? []).includes(within)) {
    return `pure package ${name} may not import ${specifier}`;
  }
  return undefined;
}

function main(): void {
  const breaches: string[] = [];
  for (const path of sources(join(root, "packages"))) {
    const file = relative(join(root, "packages"), path);
    for (const { line, specifier } of specifiers(readFileSync(path, "utf8"))) {
      const problem = breach(file, specifier);
      if (problem !== undefined) breaches.push(`packages/${file}:${line}: ${problem}`);
    }
  }
  for (const lock of ["package-lock.json", "tools/node/package-lock.json"]) {
    if (/"resolved":\s*"(https?:|git)/.test(readFileSync(join(root, lock), "utf8"))) {
      breaches.push(`${lock}: names a registry. Run npm install with omit-lockfile-registry-resolved=true (.npmrc)`);
    }
  }
  for (const text of breaches) console.error(text);
  if (breaches.length > 0) process.exit(1);
  console.log("dependency rule holds");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();

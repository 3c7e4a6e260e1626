/**
 * Bundles the programs into one folder: `node tools/build.ts OUT`.
 *
 * Everything a process needs at run time is in the bundle; node_modules is a matter of the build only. Code that only
 * some commands need goes into chunks that are loaded on demand.
 */
import { writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const out = process.argv[2];
if (out === undefined) throw new Error("usage: node tools/build.ts OUT");

/** Program name → its main file. */
const programs = {
  "cli-main": "packages/cli/src/main.ts",
  gateway: "packages/gateway/src/main.ts",
  "store-writer": "packages/gateway/src/store/writer-thread.ts",
  host: "packages/supervisor/src/main.ts",
};

await build({
  absWorkingDir: root,
  entryPoints: Object.entries(programs).map(([name, path]) => ({ in: path, out: name })),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  chunkNames: "chunks/[name]-[hash]",
  bundle: true,
  splitting: true,
  format: "esm",
  platform: "node",
  target: "node24",
  sourcemap: "linked",
  sourcesContent: false,
  minifySyntax: true,
  legalComments: "none",
  logLevel: "warning",
  // CommonJS libraries ask for Node's own modules through require().
  banner: { js: 'import { createRequire as __createRequire } from "node:module";const require=__createRequire(import.meta.url);' },
});

// Compiled code is kept beside the bundle where that can be written, which saves a quarter of the start.
await writeFile(
  join(out, "cli.mjs"),
  `import { enableCompileCache } from "node:module";
enableCompileCache(import.meta.dirname + "/compile-cache");
await import("./cli-main.mjs");
`,
);

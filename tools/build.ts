/**
 * Bundles the programs into one folder: `node tools/build.ts OUT`.
 *
 * Everything a process needs at run time is in the bundle; node_modules is a matter of the build only. Code that only
 * some commands need goes into chunks that are loaded on demand.
 */
import { writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { type BuildOptions, build, type Plugin } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const out = process.argv[2];
if (out === undefined) throw new Error("usage: node tools/build.ts OUT");

/** Program name → its main file. */
const programs: Record<string, string> = {
  gateway: "packages/gateway/src/main.ts",
  "store-writer": "packages/gateway/src/store/writer-thread.ts",
  host: "packages/supervisor/src/main.ts",
};

const shared = {
  absWorkingDir: root,
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node24",
  sourcemap: "linked",
  sourcesContent: false,
  minifySyntax: true,
  legalComments: "none",
  logLevel: "warning",
} satisfies BuildOptions;

const commandLine = join(root, "packages/cli/src");

/** Dynamic imports of the command line become programs of their own, so that its start reads one file. */
const borders: Plugin = {
  name: "borders",
  setup({ onResolve }) {
    onResolve({ filter: /^\.\.?\// }, ({ kind, path, resolveDir }) => {
      if (kind !== "dynamic-import") return undefined;
      const file = join(resolveDir, path);
      const name = `cli/${relative(commandLine, file).replaceAll("/", "-").replace(/\.ts$/, "")}`;
      programs[name] = relative(root, file);
      return { path: `./${name}.mjs`, external: true };
    });
  },
};

/** An import of one of Node's modules evaluates every one of its exports; asking for the module itself does not. */
const builtins: Plugin = {
  name: "builtins",
  setup({ onLoad, onResolve }) {
    onResolve({ filter: /^node:/ }, ({ path }) => ({ path, namespace: "builtin" }));
    onLoad({ filter: /.*/, namespace: "builtin" }, ({ path }) => ({
      contents: `module.exports = process.getBuiltinModule(${JSON.stringify(path)});`,
      loader: "js",
    }));
  },
};

await build({
  ...shared,
  entryPoints: [{ in: join(commandLine, "main.ts"), out: "cli-main" }],
  plugins: [borders, builtins],
});

await build({
  ...shared,
  entryPoints: Object.entries(programs).map(([name, path]) => ({ in: path, out: name })),
  chunkNames: "chunks/[name]-[hash]",
  splitting: true,
  // CommonJS libraries ask for Node's own modules through require().
  banner: {
    js: 'import { createRequire as __createRequire } from "node:module";const require=__createRequire(import.meta.url);',
  },
});

// Compiled code is kept beside the bundle where that can be written, which saves a quarter of the start.
await writeFile(
  join(out, "cli.mjs"),
  `import { enableCompileCache } from "node:module";
enableCompileCache(import.meta.dirname + "/compile-cache");
await import("./cli-main.mjs");
`,
);

/**
 * Bundles the programs into one folder: `node tools/build.ts OUT`.
 *
 * Everything a process needs at run time is in the bundle; node_modules is a matter of the build only. Code that only
 * some commands need goes into chunks that are loaded on demand.
 */
import { writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { type BuildOptions, type BuildResult, build, type Plugin } from "esbuild";
import { BUNDLE, builtins, REQUIRE } from "./bundle.ts";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const out = process.argv[2];
if (out === undefined) throw new Error("usage: node tools/build.ts OUT");

/** Program name → its main file. */
const programs: Readonly<Record<string, string>> = {
  gateway: "packages/gateway/src/main.ts",
  "store-writer": "packages/gateway/src/store/writer-thread.ts",
  "host-main": "packages/supervisor/src/main.ts",
  "disk-usage": "packages/drivers/src/local/disk-usage-thread.ts",
  "image-unpack": "packages/drivers/src/local/image/unpack-thread.ts",
};

const shared = { ...BUNDLE, absWorkingDir: root, outdir: out } satisfies BuildOptions;

const commandLine = join(root, "packages/cli/src");

/** Dynamic imports of the command line, which become programs of their own, so that its start reads one file. */
const commands: Record<string, string> = {};
const borders: Plugin = {
  name: "borders",
  setup({ onResolve }) {
    onResolve({ filter: /^\.\.?\// }, ({ kind, path, resolveDir }) => {
      if (kind !== "dynamic-import") return undefined;
      const file = join(resolveDir, path);
      const name = `cli/${relative(commandLine, file).replaceAll("/", "-").replace(/\.ts$/, "")}`;
      commands[name] = relative(root, file);
      return { path: `./${name}.mjs`, external: true };
    });
  },
};

await build({
  ...shared,
  entryPoints: [{ in: join(commandLine, "main.ts"), out: "cli-main" }],
  plugins: [borders, builtins],
});

/** Bundles what shares its code among itself alone: every file that a start reads takes its time, the smallest as well. */
function bundle(mains: Readonly<Record<string, string>>): Promise<BuildResult> {
  return build({
    ...shared,
    entryPoints: Object.entries(mains).map(([name, path]) => ({ in: path, out: name })),
    chunkNames: "chunks/[name]-[hash]",
    splitting: true,
    plugins: [builtins],
    banner: REQUIRE,
  });
}

await Promise.all([bundle(commands), ...Object.entries(programs).map(([name, path]) => bundle({ [name]: path }))]);

/**
 * Compiled code is kept beside the bundle where that can be written, which saves up to a quarter of a start. Processes
 * that stay write it soon after their start: not all of them end in an orderly way.
 */
const startOf = (main: string, stays: boolean): string =>
  `import { enableCompileCache${stays ? ", flushCompileCache" : ""} } from "node:module";
enableCompileCache(import.meta.dirname + "/compile-cache");
${stays ? "setTimeout(flushCompileCache, 3000).unref();\n" : ""}await import("./${main}.mjs");
`;

await writeFile(join(out, "cli.mjs"), startOf("cli-main", false));
await writeFile(join(out, "host.mjs"), startOf("host-main", true));

import { isBuiltin } from "node:module";
import type { BuildOptions, Plugin } from "esbuild";

/** How every program is bundled. */
export const BUNDLE = {
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

/**
 * An import of one of Node's modules evaluates every one of its exports (`http` alone brings a fetch client); asking for
 * the module itself does not.
 */
export const builtins: Plugin = {
  name: "builtins",
  setup({ onLoad, onResolve }) {
    // A dynamic import of one would lose its named exports.
    onResolve({ filter: /^[a-z_:/0-9]+$/ }, ({ path, kind }) =>
      isBuiltin(path) && kind !== "dynamic-import" ? { path, namespace: "builtin" } : undefined,
    );
    onLoad({ filter: /.*/, namespace: "builtin" }, ({ path }) => ({
      contents: `module.exports = process.getBuiltinModule(${JSON.stringify(path)});`,
      loader: "js",
    }));
  },
};

/** CommonJS libraries ask for Node's own modules through require(). */
export const REQUIRE = {
  js: 'const require=process.getBuiltinModule("node:module").createRequire(import.meta.url);',
} satisfies BuildOptions["banner"];

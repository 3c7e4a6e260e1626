import { existsSync, realpathSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import packageJson from "../package.json" with { type: "json" };

/** Released version. */
export const VERSION: string = packageJson.version;

/** The folder with the bundles: `$OPENSHELL_DIST`, else where this program lies. Undefined when run from sources. */
export function distFolder(env: Readonly<Record<string, string | undefined>> = process.env): string | undefined {
  const named = env["OPENSHELL_DIST"];
  if (named !== undefined && named !== "") return named;
  const program = process.argv[1];
  if (program === undefined) return undefined;
  const folder = dirname(realpathSync(program));
  return existsSync(join(folder, "gateway.mjs")) ? folder : undefined;
}

/** Identity of this build: the name of its folder, which is made of its content. Empty when run from sources. */
export function ownBuild(env: Readonly<Record<string, string | undefined>> = process.env): string {
  const folder = distFolder(env);
  return folder === undefined ? "" : basename(folder);
}

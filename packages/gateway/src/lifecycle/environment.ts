import { existsSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Where this process's programs are. */
export interface Programs {
  /** Folder of the bundles and `native/`; undefined when run from sources without one. */
  readonly dist: string | undefined;
  readonly host: string;
  /** Identity of the build: the name of its folder, which is made of its content. Empty when run from sources. */
  readonly build: string;
}

/** `mainUrl`: import.meta.url of the program's main file. */
export function findPrograms(mainUrl: string, env: Readonly<Record<string, string | undefined>>): Programs {
  const main = fileURLToPath(mainUrl);
  const named = env["OPENSHELL_DIST"] || undefined;
  if (main.endsWith(".ts")) {
    const built = named === undefined ? undefined : join(named, "host.mjs");
    const host = built !== undefined && existsSync(built) ? built : join(dirname(main), "../../supervisor/src/main.ts");
    return { dist: named, host, build: "" };
  }
  const dist = named ?? dirname(main);
  return { dist, host: join(dist, "host.mjs"), build: basename(dist) };
}

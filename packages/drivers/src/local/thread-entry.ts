import { basename, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

/** The file of a worker thread: a source beside the module that starts it, or a program of the bundle (tools/build.ts). */
export function threadEntry(moduleUrl: string, source: string, program: string): URL {
  if (moduleUrl.endsWith(".ts")) return new URL(source, moduleUrl);
  const folder = dirname(fileURLToPath(moduleUrl));
  // Code that is loaded on demand sits one folder below the programs.
  const programs = basename(folder) === "chunks" ? dirname(folder) : folder;
  return pathToFileURL(join(programs, `${program}.mjs`));
}

import { copyFileSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const PARTS = { "gateway.mjs": "gateway", "host.mjs": "host" } as const;

/**
 * The build, in a folder of the same name below `parent`, with a gateway and a host whose wall clocks tests can set
 * (programs/clock.mjs), and a host whose gateway can be a proxy (programs/link.mjs); everything else is linked. Returns
 * the folder.
 */
export function clockedBuild(build: string, parent: string): string {
  const folder = join(parent, basename(build));
  mkdirSync(folder, { recursive: true, mode: 0o755 });
  for (const name of readdirSync(build)) if (!(name in PARTS)) symlinkSync(join(build, name), join(folder, name));
  for (const name of ["clock.mjs", "link.mjs"])
    copyFileSync(join(import.meta.dirname, "programs", name), join(folder, name));
  for (const [program, part] of Object.entries(PARTS)) {
    const real = pathToFileURL(join(build, program)).href;
    const lines = [
      `import { shiftClock } from "./clock.mjs";`,
      `shiftClock(${JSON.stringify(part)});`,
      ...(part === "host" ? [`import { relinkGateway } from "./link.mjs";`, "relinkGateway();"] : []),
      `await import(${JSON.stringify(real)});`,
    ];
    writeFileSync(join(folder, program), `${lines.join("\n")}\n`);
  }
  return folder;
}

import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { enterCommand } from "../../tests/support/enter.ts";
import { Build } from "./stage.ts";

/** Builds, since there is no network where measurements run, and starts this program again in a test network. Its exit status. */
export function againInTestNetwork(program: string): number {
  Build.prepare();
  const folder = mkdtempSync(join(tmpdir(), "openshell-bench-run-"));
  try {
    const command = enterCommand([process.execPath, program, ...process.argv.slice(2)]);
    const env = { ...process.env, TMPDIR: folder };
    const { status } = spawnSync(command[0]!, command.slice(1), { stdio: "inherit", env });
    return status ?? 1;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

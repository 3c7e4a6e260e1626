import { spawn } from "node:child_process";
import { once } from "node:events";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

/**
 * npm run test:faults [-- --seeds N] [--from S] [--parallel P] [--mode root|user|both]
 *   [--kind lifecycle|delivery] [--verbose] [--no-build]
 *
 * 200 seeds by default: as root three quarters of them as root, the rest as an ordinary user. `--verbose` prints what
 * happened in runs that went well too.
 */

const repository = resolve(import.meta.dirname, "../..");
const root = process.getuid?.() === 0;
const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "200" },
    from: { type: "string", default: "1" },
    parallel: { type: "string", default: "4" },
    mode: { type: "string", default: root ? "both" : "user" },
    kind: { type: "string", default: "lifecycle" },
    verbose: { type: "boolean", default: false },
    "no-build": { type: "boolean", default: false },
  },
});

function whole(name: "seeds" | "from" | "parallel"): number {
  const value = Number(values[name]);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`--${name} takes a whole number from 1 on`);
  return value;
}

const FILES: Readonly<Record<string, string>> = {
  lifecycle: "tests/faults/faults.test.ts",
  delivery: "tests/faults/delivery/delivery.test.ts",
};
const file = FILES[values.kind];
if (file === undefined) throw new Error(`--kind takes ${Object.keys(FILES).join(" or ")}`);

async function run(mode: string, seeds: number): Promise<boolean> {
  const args = [join(repository, "tests/run.ts"), "--mode", mode, ...(values["no-build"] ? ["--no-build"] : [])];
  const env = {
    ...process.env,
    OPENSHELL_TEST_FAULTS_SEEDS: String(seeds),
    OPENSHELL_TEST_FAULTS_FROM: String(whole("from")),
    OPENSHELL_TEST_FAULTS_VERBOSE: values.verbose ? "1" : "0",
    OPENSHELL_TEST_FAULTS_PARALLEL: String(whole("parallel")),
  };
  const child = spawn(process.execPath, [...args, file!], { stdio: "inherit", env });
  const [code] = (await once(child, "close")) as [number | null];
  return code === 0;
}

const seeds = whole("seeds");
const asUser = Math.floor(seeds / 4);
const passes: readonly (readonly [string, number])[] =
  values.mode === "both"
    ? [
        ["root", seeds - asUser],
        ["user", asUser],
      ]
    : [[values.mode, seeds]];
let ok = true;
for (const [mode, share] of passes) if (share > 0) ok = (await run(mode, share)) && ok;
process.exitCode = ok ? 0 : 1;

import { parseArgs } from "node:util";
import { counts, problems } from "./check.ts";
import { Copy } from "./copy.ts";
import type { Fault, Guard, Suite } from "./fault.ts";
import { faults } from "./known-faults.ts";
import { build, outcomes } from "./run-test.ts";

/**
 * npm run test:known-faults [-- --check] [--only ID]… [--suite unit|system]
 *
 * Shows for each known fault that its test fails without the defence: in a private copy of the checkout takes the
 * defence out, runs the test alone, and puts the defence back. `--check` runs nothing and looks whether the table fits
 * the sources.
 */

const { values } = parseArgs({
  options: {
    check: { type: "boolean", default: false },
    only: { type: "string", multiple: true, default: [] },
    suite: { type: "string" },
  },
});

const suiteOf = ({ test }: Guard): Suite => test.suite ?? "unit";

function wanted(): readonly (readonly [Fault, Guard])[] {
  const named = faults.filter(({ ids }) => values.only.length === 0 || ids.some((id) => values.only.includes(id)));
  if (named.length === 0) throw new Error(`no such fault: ${values.only.join(", ")}`);
  const all = named.flatMap((fault) => (fault.guards ?? []).map((guard) => [fault, guard] as const));
  return all.filter(([, guard]) => values.suite === undefined || suiteOf(guard) === values.suite);
}

/** Whether all tests pass while the defences are in place. */
async function unmodified(checkout: string, guards: readonly Guard[]): Promise<boolean> {
  let ok = true;
  for (const suite of ["unit", "system"] as const) {
    const tests = guards.filter((guard) => suiteOf(guard) === suite).map(({ test }) => test);
    if (tests.length === 0) continue;
    if (suite === "system") await build(checkout);
    for (const [at, { state, said }] of (await outcomes(checkout, suite, tests)).entries()) {
      if (state === "passed") continue;
      console.log(`${tests[at]!.file}: ${tests[at]!.title}: ${state} with its defence in place: ${said}`);
      ok = false;
    }
  }
  return ok;
}

async function proven(copy: Copy, [{ ids }, guard]: readonly [Fault, Guard]): Promise<boolean> {
  const { test, without } = guard;
  const [found] = await copy.without(without, async () => {
    if (suiteOf(guard) === "system") await build(copy.folder);
    return outcomes(copy.folder, suiteOf(guard), [test]);
  });
  const ok = found!.state === (guard.hangs === true ? "late" : "failed");
  const word = ok ? "proven  " : found!.state === "passed" ? "SURVIVED" : "UNCLEAR ";
  console.log(`${word} ${ids.join(", ")}: ${test.file}: ${test.title}: ${found!.said}`);
  return ok;
}

async function main(): Promise<boolean> {
  const wrong = problems(faults);
  for (const problem of wrong) console.log(problem);
  if (wrong.length > 0) return false;
  console.log(`known faults: ${counts(faults)}`);
  if (values.check) return true;
  const guards = wanted();
  using copy = new Copy();
  const tests = guards.map(([, guard]) => guard);
  const whole = await unmodified(copy.folder, tests);
  let failed = 0;
  for (const guard of guards) if (!(await proven(copy, guard))) failed++;
  console.log(`${guards.length - failed} of ${guards.length} removals are noticed`);
  return whole && failed === 0;
}

process.exitCode = (await main()) ? 0 : 1;

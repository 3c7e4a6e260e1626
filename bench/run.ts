import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { TestGateway } from "../tests/support/api.ts";
import { insideTestNetwork } from "../tests/support/enter.ts";
import { TestInternet } from "../tests/support/internet/index.ts";
import { report } from "./report/main.ts";
import { churn } from "./suites/churn.ts";
import { create } from "./suites/create.ts";
import { delivery } from "./suites/delivery.ts";
import { egress } from "./suites/egress.ts";
import { exec } from "./suites/exec.ts";
import { gateway } from "./suites/gateway.ts";
import { idle } from "./suites/idle.ts";
import { neighbours } from "./suites/neighbours.ts";
import { policy } from "./suites/policy.ts";
import { rpc } from "./suites/rpc.ts";
import { againInTestNetwork } from "./support/enter.ts";
import { append, type History, line, machine, type Result, table } from "./support/report.ts";
import { Build, type Stage } from "./support/stage.ts";

/**
 * Measures the product against its budgets, each figure beside a point of reference of the same run.
 *
 *     npm run bench [-- NAME…] [--json FILE] [--seconds N] [--sandboxes N]
 *     npm run bench -- report [--out FILE]
 *
 * NAME: create, exec, egress, policy, gateway, rpc, neighbours, delivery, idle, churn; all by default. --sandboxes: of each round of churn. Everything runs in a test internet, in a home of its own and on a
 * copy of the build; only the results stay: one line of JSON appended to FILE, by default a file of its own in bench/results/local.
 * Exit status 0 when every figure was measured, whatever its verdict: times of a busy machine are no failure.
 */

const SUITES = { create, exec, egress, policy, gateway, rpc, neighbours, delivery, idle, churn } as const;
type SuiteName = keyof typeof SUITES;
/** Not under version control; a run that others should see is written elsewhere with --json. */
const LOCAL_RESULTS = resolve(import.meta.dirname, "results/local");
const DEFAULT_SECONDS = 1.5;
const DEFAULT_SANDBOXES = 500;
const MAX_SANDBOXES = 20_000;
/** Suites whose figures are of all parts that run: nothing else is left when they begin. */
const ALONE: ReadonlySet<string> = new Set(["delivery", "idle", "churn"]);

function usage(text: string): never {
  console.error(
    `${text}\nusage: npm run bench [-- NAME…] [--json FILE] [--seconds N] [--sandboxes N]\n       npm run bench -- report [--out FILE]\nNAME: ${Object.keys(SUITES).join(", ")}`,
  );
  process.exit(2);
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: "string" },
      out: { type: "string" },
      seconds: { type: "string" },
      sandboxes: { type: "string" },
    },
  });
  if (positionals[0] === "report") {
    if (positionals.length > 1) usage("report stands alone");
    report(values.out === undefined ? undefined : resolve(values.out));
    return 0;
  }
  const names = (positionals.length === 0 ? Object.keys(SUITES) : positionals) as SuiteName[];
  for (const name of names) if (!Object.hasOwn(SUITES, name)) usage(`there is no benchmark ${JSON.stringify(name)}`);
  const seconds = Number(values.seconds ?? DEFAULT_SECONDS);
  if (!(seconds > 0 && seconds <= 60)) usage("--seconds takes a number up to 60");
  const sandboxes = Number(values.sandboxes ?? DEFAULT_SANDBOXES);
  if (!(Number.isInteger(sandboxes) && sandboxes > 0 && sandboxes <= MAX_SANDBOXES))
    usage(`--sandboxes takes a number up to ${MAX_SANDBOXES}`);
  if (!insideTestNetwork()) return againInTestNetwork(import.meta.filename);
  const at = new Date().toISOString();
  const history = resolve(values.json ?? `${LOCAL_RESULTS}/${at.replaceAll(":", "-")}.jsonl`);
  const facts = machine();
  console.log(`${facts.cpu}, ${facts.cores} cores, Linux ${facts.kernel}, Node ${facts.node}, load ${facts.load}\n`);
  const startedAt = performance.now();
  const results: Result[] = [];
  const failed = await measure(names, { seconds, sandboxes }, results);
  const took = Math.round((performance.now() - startedAt) / 1000);
  console.log(`\n${table(results)}\n\n${results.length} figures in ${took} s`);
  append(history, { at, seconds: took, machine: facts, results } satisfies History);
  for (const { name, error } of failed)
    console.error(`${name} failed: ${error instanceof Error ? error.stack : error}`);
  return failed.length === 0 ? 0 : 1;
}

async function measure(
  names: readonly SuiteName[],
  { seconds, sandboxes }: Pick<Stage, "seconds" | "sandboxes">,
  results: Result[],
): Promise<readonly { readonly name: string; readonly error: unknown }[]> {
  const failed: { name: string; error: unknown }[] = [];
  using build = Build.copy();
  const cleanups: (() => unknown)[] = [];
  await using net = await TestInternet.start();
  const freshGateway = () => TestGateway.start(net, { command: [build.launcher] });
  let shared: TestGateway | undefined;
  const stage: Stage = {
    net,
    build,
    seconds,
    sandboxes,
    report: (result) => {
      results.push(result);
      console.log(line(result));
    },
    gateway: async () => {
      shared ??= await freshGateway();
      return shared;
    },
    freshGateway,
    cleanup: (step) => cleanups.push(step),
  };
  try {
    for (const name of names) {
      if (ALONE.has(name)) {
        await shared?.[Symbol.asyncDispose]();
        shared = undefined;
      }
      const startedAt = performance.now();
      await SUITES[name](stage).catch((error) => failed.push({ name, error }));
      console.log(`    ${name}: ${Math.round((performance.now() - startedAt) / 1000)} s`);
    }
  } finally {
    for (const step of cleanups) await step();
    await shared?.[Symbol.asyncDispose]();
  }
  return failed;
}

process.exitCode = await main();

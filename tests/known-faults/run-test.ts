import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { enterCommand } from "../support/enter.ts";
import type { NamedTest, Suite } from "./fault.ts";

/** What became of a test. `said` is the first line of why it failed. */
export interface Outcome {
  readonly state: "passed" | "failed" | "late" | "absent" | "broken";
  readonly said: string;
}

/** The part of vitest's JSON report that is used. */
interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly message: string;
    readonly assertionResults: readonly {
      readonly title: string;
      readonly status: string;
      readonly failureMessages: readonly string[];
    }[];
  }[];
}

/** Sources that do not load, or that name what is not there: such a test fails for another reason than the fault. */
const BROKEN =
  /^(SyntaxError|ReferenceError|Error: (Failed to (load|resolve)|Cannot find|Transform failed))|is not a function|is not defined/;

/** It waited for something until the end of its time, which may have many reasons. */
const LATE = /^\w*Error: Test timed out/;

/** The titles of a test, and of all tests that are made of a title with placeholders. */
function pattern(title: string): string {
  return title
    .split(/%\.?\d*[sijdo]|\$[a-zA-Z.]+|\$\{[^}]*\}/)
    .map((part) => part.replaceAll(/[\\^$.*+?()[\]{}|/]/g, "\\$&"))
    .join(".*");
}

interface Ended {
  readonly code: number | null;
  /** The end of what it printed. */
  readonly output: string;
}

function run(argv: readonly string[], cwd: string, env: NodeJS.ProcessEnv): Promise<Ended> {
  const child = spawn(argv[0]!, argv.slice(1), { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => {
      output = (output + text).slice(-20_000);
    });
  return new Promise((done, fail) => child.on("error", fail).on("close", (code) => done({ code, output })));
}

/** Runs tests of one suite in a checkout, and nothing else of their files. */
async function report(checkout: string, suite: Suite, tests: readonly NamedTest[]): Promise<Report> {
  const scratch = mkdtempSync(join(tmpdir(), "openshell-known-"));
  try {
    const file = join(scratch, "report.json");
    const names = `(${tests.map(({ title }) => pattern(title)).join("|")})$`;
    const vitest = join(checkout, "node_modules/vitest/vitest.mjs");
    const options = [
      "--project",
      suite,
      "--root",
      checkout,
      "--configLoader",
      "native",
      "--reporter=json",
      `--outputFile=${file}`,
    ];
    const argv = [process.execPath, vitest, "run", ...options, "-t", names, ...new Set(tests.map((test) => test.file))];
    const { output } = await run(suite === "system" ? enterCommand(argv) : argv, checkout, {
      ...process.env,
      TMPDIR: scratch,
    });
    if (!existsSync(file)) throw new Error(`the tests did not come to their end:\n${output}`);
    return JSON.parse(readFileSync(file, "utf8")) as Report;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function outcome(found: Report, checkout: string, { file, title }: NamedTest): Outcome {
  const suite = found.testResults.find(({ name }) => name === join(checkout, file));
  const titled = new RegExp(`^${pattern(title)}$`);
  const results = suite?.assertionResults.filter((result) => titled.test(result.title)) ?? [];
  const failed = results.find(({ status }) => status === "failed");
  if (failed !== undefined) {
    const said = failed.failureMessages[0]?.split("\n")[0] ?? "";
    return { state: BROKEN.test(said) ? "broken" : LATE.test(said) ? "late" : "failed", said };
  }
  if (results.some(({ status }) => status === "passed")) return { state: "passed", said: "" };
  const message = suite?.message.split("\n")[0] ?? "";
  return message === "" ? { state: "absent", said: "" } : { state: "broken", said: message };
}

/** What becomes of tests of one suite in a checkout. */
export async function outcomes(
  checkout: string,
  suite: Suite,
  tests: readonly NamedTest[],
): Promise<readonly Outcome[]> {
  const found = await report(checkout, suite, tests);
  return tests.map((test) => outcome(found, checkout, test));
}

/** Builds what the system tests start. */
export async function build(checkout: string): Promise<void> {
  const env = { ...process.env, OPENSHELL_OUT: join(checkout, "dist") };
  const { code, output } = await run(["sh", join(checkout, "tools/prepare.sh")], checkout, env);
  if (code !== 0) throw new Error(`the build failed:\n${output}`);
}

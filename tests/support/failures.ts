import { existsSync, readFileSync } from "node:fs";
import { stripVTControlCharacters } from "node:util";

/**
 * What failed in a run of vitest, from its JSON report: for the end of the output, since thousands of lines of other tests
 * follow a failure and whoever keeps only the last part of an output would not learn what it was.
 *
 *     node tests/support/failures.ts REPORT…
 *
 * Reports that do not exist are left out.
 */

/** The part of vitest's JSON report that says what failed. */
interface FailureReport {
  readonly testResults: readonly {
    /** Path of the file. */
    readonly name: string;
    readonly status: string;
    /** Why the file as a whole failed; empty otherwise. */
    readonly message: string;
    readonly assertionResults: readonly {
      readonly fullName: string;
      readonly status: string;
      readonly failureMessages?: readonly string[] | null;
    }[];
  }[];
}

/** More failures than that are counted only. */
const FAILURES = 20;
/** Lines and characters of one failure's message; vitest's own stack frames are left out. */
const LINES = 15;
const CHARACTERS = 1500;

function shortened(message: string): string {
  const lines = stripVTControlCharacters(message).slice(0, CHARACTERS).split("\n");
  const ours = lines.filter((line) => !/\/node_modules\/|^ +at new Promise/.test(line)).slice(0, LINES);
  return ours.map((line) => `    ${line}`).join("\n");
}

/** Lines to print; none when nothing failed. `reportFile` is what `--reporter=json` wrote; `root` is left out of paths. */
export function failuresOf(reportFile: string, root: string): readonly string[] {
  const report = JSON.parse(readFileSync(reportFile, "utf8")) as FailureReport;
  const failures: string[] = [];
  for (const file of report.testResults) {
    const path = file.name.startsWith(`${root}/`) ? file.name.slice(root.length + 1) : file.name;
    const failed = file.assertionResults.filter((test) => test.status === "failed");
    for (const test of failed) {
      failures.push(`FAILED ${path}: ${test.fullName}\n${shortened((test.failureMessages ?? []).join("\n"))}`);
    }
    if (file.status === "failed" && failed.length === 0) failures.push(`FAILED ${path}\n${shortened(file.message)}`);
  }
  const rest = failures.length - FAILURES;
  return rest > 0 ? [...failures.slice(0, FAILURES), `FAILED: ${rest} more`] : failures;
}

if (import.meta.main) {
  for (const file of process.argv.slice(2).filter((path) => existsSync(path))) {
    for (const line of failuresOf(file, process.cwd())) console.log(line);
  }
}

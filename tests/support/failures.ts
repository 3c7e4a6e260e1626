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

/** The part of vitest's JSON report that is used. */
interface Report {
  readonly success: boolean;
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly numTodoTests: number;
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

export interface Failure {
  /** Path of the test file below the root. */
  readonly file: string;
  /** Undefined: the file failed before or after its tests. */
  readonly test: string | undefined;
  /** For people: where, and the beginning of the message. */
  readonly text: string;
}

export interface Outcome {
  readonly success: boolean;
  /** How many passed, failed and were skipped. */
  readonly counts: string;
  readonly failures: readonly Failure[];
  /** Tests that passed, as {@link nameOf} has them. */
  readonly passed: ReadonlySet<string>;
}

/** `reportFile` is what `--reporter=json` wrote; `root` is left out of paths. */
export function readOutcome(reportFile: string, root: string): Outcome {
  const report = JSON.parse(readFileSync(reportFile, "utf8")) as Report;
  const failures: Failure[] = [];
  const passed = new Set<string>();
  for (const { name, status, message, assertionResults } of report.testResults) {
    const file = name.startsWith(`${root}/`) ? name.slice(root.length + 1) : name;
    for (const test of assertionResults) if (test.status === "passed") passed.add(nameOf(file, test.fullName));
    const failed = assertionResults.filter((test) => test.status === "failed");
    for (const { fullName: test, failureMessages } of failed)
      failures.push({ file, test, text: `${nameOf(file, test)}\n${shortened((failureMessages ?? []).join("\n"))}` });
    // A hook that failed, or the file as a whole: beside failed tests too.
    if (status === "failed" && (failed.length === 0 || message !== ""))
      failures.push({ file, test: undefined, text: `${file}\n${shortened(message)}` });
  }
  const skipped = report.numPendingTests + report.numTodoTests;
  const counts = `${report.numPassedTests} passed, ${report.numFailedTests} failed, ${skipped} skipped`;
  return { success: report.success, counts, failures, passed };
}

/** What failed outside of any test; `unhandledFile` is what the reporter for that wrote, if there was anything. */
export function unhandledIn(unhandledFile: string): readonly Failure[] {
  if (!existsSync(unhandledFile)) return [];
  const texts = JSON.parse(readFileSync(unhandledFile, "utf8")) as readonly string[];
  return texts.map((text) => ({ file: "", test: undefined, text: `outside of any test\n${shortened(text)}` }));
}

/** A test among those of all files. */
export function nameOf(file: string, test: string): string {
  return `${file}: ${test}`;
}

/** Says each after `label`, the first ones with their messages. */
export function tellFailures(label: string, failures: readonly Failure[]): void {
  for (const { text } of failures.slice(0, FAILURES)) console.log(`${label} ${text}`);
  if (failures.length > FAILURES) console.log(`${label} ${failures.length - FAILURES} more`);
}

if (import.meta.main) {
  for (const file of process.argv.slice(2).filter((path) => existsSync(path)))
    tellFailures("FAILED", readOutcome(file, process.cwd()).failures);
}

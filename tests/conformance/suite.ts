import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runCommand } from "../support/command.ts";
import { mode } from "../support/modes.ts";
import { program, requiredProgram } from "../support/programs.ts";
import { CLIENT_EXCEPTIONS, SERVER_EXCEPTIONS } from "./exceptions.ts";
import type { Implementation } from "./implementation.ts";

/** Runs Connect's conformance suite; its runner judges, this reads what it says. */

/**
 * Why the suites are not run here, or undefined. Where Go is, they have to have been built: else every case would be
 * skipped without notice.
 */
export function whySkipped(): string | undefined {
  if (mode !== "root") return "as root only";
  const found = program("conformance");
  return "missing" in found && found.missing.includes("is not on this machine") ? found.missing : undefined;
}

const SUITE_TIMEOUT_MS = 150_000;

/** Suites whose cases compare times: the runner allows half a second, which a busy machine exceeds. */
const TIMED = /^(Timeouts|Deadline Propagation)\//;
/** So many other failures can be accidents of a busy machine as well. */
const FEW = 3;
/** What may be an accident fails when it fails this often in a row. */
const ATTEMPTS = 3;

function maybeAccidents({ failed, complete }: Report): boolean {
  return complete && failed.length > 0 && failed.filter((name) => !TIMED.test(name)).length <= FEW;
}

export interface Outcome {
  /** Test cases that ran to an outcome. */
  readonly cases: number;
  readonly passed: number;
  readonly failedAsExpected: number;
  /** Cases that passed only when they were run again, with what was wrong at first; "" for none. */
  readonly repeated: string;
  /** Cases with another outcome than expected, with what was wrong, and whatever kept others from running. */
  readonly surprises: string;
}

/** @param claims the file that selects the cases */
export async function runSuite(
  side: "server" | "client",
  implementation: Implementation,
  claims: "port" | "grpc",
): Promise<Outcome> {
  const exceptions = (side === "server" ? SERVER_EXCEPTIONS : CLIENT_EXCEPTIONS)[implementation];
  const known = exceptions.flatMap(({ cases }) => ["--known-failing", cases]);
  const underTest = [process.execPath, join(import.meta.dirname, `${side}.ts`), implementation];
  const config = join(import.meta.dirname, `${claims}.yaml`);
  const runner = join(requiredProgram("conformance"), "connectconformance");
  // The runner starts a server for each combination of protocol, version of HTTP and TLS; they compile once.
  const cache = mkdtempSync(join(tmpdir(), "openshell-conformance-"));
  const attempt = async (only: readonly string[]): Promise<Report> => {
    const selected = only.flatMap((name) => ["--run", name]);
    const { stdout, stderr, exitCode } = await runCommand(
      [runner, "--mode", side, "--conf", config, ...known, ...selected, "--", ...underTest],
      { env: { NODE_COMPILE_CACHE: cache }, timeoutMs: SUITE_TIMEOUT_MS },
    );
    return reportOf(stdout, stderr, exitCode);
  };
  try {
    const first = await attempt([]);
    let last = first;
    for (let runs = 1; runs < ATTEMPTS && maybeAccidents(last); runs++) last = await attempt(last.failed);
    const { cases, failedAsExpected } = first;
    const passed = first.passed + first.failed.length - last.failed.length;
    return { cases, passed, failedAsExpected, repeated: first.surprises, surprises: last.surprises };
  } finally {
    rmSync(cache, { recursive: true });
  }
}

interface Report extends Omit<Outcome, "repeated"> {
  readonly failed: readonly string[];
  /** All cases ran, and `failed` is all that is wrong. */
  readonly complete: boolean;
}

function reportOf(stdout: string, stderr: string, exitCode: number | null): Report {
  const count = (pattern: RegExp): number => Number(pattern.exec(stdout)?.[1] ?? 0);
  const failures = count(/^\d+ passed, (\d+) failed/m);
  const notRun = count(/^Another (\d+) could not be run/m);
  const told = stdout
    .split("\n")
    .filter((line, at, all) => [line, all[at - 1] ?? ""].some((each) => each.startsWith("FAILED: ")));
  const failed = told.flatMap((line) => /^FAILED: (.*):$/.exec(line)?.[1] ?? []);
  const fine = exitCode === 0 && failures === 0 && notRun === 0;
  return {
    cases: count(/^Total cases: (\d+)/m),
    passed: count(/^(\d+) passed/m),
    failedAsExpected: count(/^\(Another (\d+) failed as expected/m),
    failed,
    complete: notRun === 0 && failures === failed.length,
    surprises: fine ? "" : [`exit ${exitCode}, ${failures} failed, ${notRun} not run`, ...told, stderr].join("\n"),
  };
}

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runCommand } from "../support/command.ts";
import { requiredProgram } from "../support/programs.ts";
import { CLIENT_EXCEPTIONS, SERVER_EXCEPTIONS } from "./exceptions.ts";
import type { Implementation } from "./implementation.ts";

/** Runs Connect's conformance suite; its runner judges, this reads what it says. */

const SUITE_TIMEOUT_MS = 150_000;

export interface Outcome {
  /** Test cases that ran to an outcome. */
  readonly cases: number;
  readonly passed: number;
  readonly failedAsExpected: number;
  /** Cases with another outcome than expected, with what was wrong, and whatever kept others from running. */
  readonly surprises: string;
}

export async function runSuite(side: "server" | "client", implementation: Implementation): Promise<Outcome> {
  const exceptions = (side === "server" ? SERVER_EXCEPTIONS : CLIENT_EXCEPTIONS)[implementation];
  const known = exceptions.flatMap(({ cases }) => ["--known-failing", cases]);
  const underTest = [process.execPath, join(import.meta.dirname, `${side}.ts`), implementation];
  const config = join(import.meta.dirname, `${side}.yaml`);
  const runner = join(requiredProgram("conformance"), "connectconformance");
  // The runner starts a server for each combination of protocol, version of HTTP and TLS; they compile once.
  const cache = mkdtempSync(join(tmpdir(), "openshell-conformance-"));
  try {
    const { stdout, stderr, exitCode } = await runCommand(
      [runner, "--mode", side, "--conf", config, ...known, "--", ...underTest],
      { env: { NODE_COMPILE_CACHE: cache }, timeoutMs: SUITE_TIMEOUT_MS },
    );
    return outcomeOf(stdout, stderr, exitCode);
  } finally {
    rmSync(cache, { recursive: true });
  }
}

function outcomeOf(stdout: string, stderr: string, exitCode: number | null): Outcome {
  const count = (pattern: RegExp): number => Number(pattern.exec(stdout)?.[1] ?? 0);
  const failed = count(/^\d+ passed, (\d+) failed/m);
  const notRun = count(/^Another (\d+) could not be run/m);
  const lines = stdout.split("\n");
  const failures = lines.filter(
    (line, at) => line.startsWith("FAILED: ") || (lines[at - 1] ?? "").startsWith("FAILED: "),
  );
  const surprises =
    exitCode === 0 && failed === 0 && notRun === 0
      ? ""
      : [`exit ${exitCode}, ${failed} failed, ${notRun} not run`, ...failures, stderr].join("\n");
  return {
    cases: count(/^Total cases: (\d+)/m),
    passed: count(/^(\d+) passed/m),
    failedAsExpected: count(/^\(Another (\d+) failed as expected/m),
    surprises,
  };
}

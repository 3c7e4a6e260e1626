import { writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Reporter } from "vitest/node";

/** Beside the folder for temporary files of a pass, which holds its report. */
export const UNHANDLED_FILE = "unhandled.json";

/** Writes down what failed outside of any test, which vitest's JSON report leaves out. */
export default class UnhandledReporter implements Reporter {
  onTestRunEnd(_modules: unknown, errors: readonly { readonly message?: string; readonly stack?: string }[]): void {
    if (errors.length === 0) return;
    const texts = errors.map(({ stack, message }) => stack ?? message ?? "unknown");
    writeFileSync(join(tmpdir(), "..", UNHANDLED_FILE), JSON.stringify(texts));
  }
}

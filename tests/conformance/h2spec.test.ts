import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { GatewayProcess } from "../functional/gateway/gateway-process.ts";
import { runCommand } from "../support/command.ts";
import { requiredProgram } from "../support/programs.ts";
import { H2SPEC_EXCEPTIONS } from "./exceptions.ts";
import { whySkipped } from "./suite.ts";

/**
 * h2spec, which sends valid and broken frames of every kind, against the TCP port of a gateway as it ships. Cases whose
 * second frame races with the answer to the first end either way: a surprising failure has to repeat.
 */

const ATTEMPTS = 4;
/** What h2spec waits for an answer. Every expected failure takes this long. Seconds. */
const ANSWER_SECONDS = 1;
const LEAST_CASES = 140;
const RUN_TIMEOUT_MS = 100_000;

/** The three groups of cases by the headings over them. */
const GROUPS: readonly (readonly [heading: string, name: string])[] = [
  ["Generic tests", "generic"],
  ["Hypertext Transfer Protocol", "http2"],
  ["HPACK", "hpack"],
];

interface Report {
  readonly cases: number;
  readonly failed: readonly string[];
  readonly text: string;
}

/** Of all cases, or of those named. */
async function h2spec(port: string, cases: readonly string[] = []): Promise<Report> {
  const runner = join(requiredProgram("conformance"), "h2spec");
  const where = ["-h", "127.0.0.1", "-p", port, "-P", "/healthz", "--tls", "--insecure"];
  const how = ["--strict", "--timeout", String(ANSWER_SECONDS)];
  const { stdout, stderr } = await runCommand([runner, ...where, ...how, ...cases], { timeoutMs: RUN_TIMEOUT_MS });
  const totals = /^(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed/m.exec(stdout);
  if (totals === null) throw new Error(`h2spec did not finish: ${stdout.slice(-1_000)}${stderr}`);
  const failed = failures(stdout.split(/^Failures:/m)[0]!);
  if (failed.length !== Number(totals[4])) throw new Error(`h2spec wrote what is not understood here: ${stdout}`);
  return { cases: Number(totals[1]) - Number(totals[3]), failed, text: stdout };
}

/** Names of failed cases as h2spec takes them: group, section and number. */
function failures(progress: string): string[] {
  let group = "";
  let section = "";
  const found: string[] = [];
  for (const written of progress.split("\n")) {
    // Progress of a case is overwritten by its outcome.
    const line = written.split("\r").at(-1)!;
    group = GROUPS.find(([heading]) => line.startsWith(heading))?.[1] ?? group;
    section = /^ +([\d.]+)\. /.exec(line)?.[1] ?? section;
    const number = /^ +× (\d+): /.exec(line)?.[1];
    if (number !== undefined) found.push(`${group}/${section}/${number}`);
  }
  return found;
}

const skipped = whySkipped();

describe.skipIf(skipped !== undefined)(`h2spec${skipped === undefined ? "" : ` (${skipped})`}`, () => {
  test("finds no surprise at the gateway's port, and leaves it well", { timeout: 180_000 }, async () => {
    await using gateway = new GatewayProcess();
    const record = await gateway.started();
    const { port } = new URL(record.endpoint!);
    const report = await h2spec(port);
    const known = H2SPEC_EXCEPTIONS.map(({ cases }) => cases);
    let surprises = report.failed.filter((each) => !known.includes(each));
    let { text } = report;
    for (let attempt = 1; attempt < ATTEMPTS && surprises.length > 0; attempt++) {
      const again = await h2spec(port, surprises);
      surprises = surprises.filter((each) => again.failed.includes(each));
      text = again.text;
    }
    console.log(`h2spec: ${report.cases} cases, ${report.failed.length} failed, ${known.length} of them known to`);
    expect(surprises, text).toEqual([]);
    expect(known.filter((each) => !report.failed.includes(each))).toEqual([]);
    expect(report.cases).toBeGreaterThan(LEAST_CASES);
    expect(await gateway.tls().health({})).toMatchObject({ version: record.version });
  });
});

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { buildFolder } from "../../functional/gateway/gateway-process.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, takeInventory } from "../../support/leaks.ts";
import { inMode } from "../../support/modes.ts";
import { clockedBuild } from "../clocked-build.ts";
import { Counts } from "../counts.ts";
import { Origin } from "./origin.ts";
import { POINTS } from "./plan.ts";
import { runDeliverySeed } from "./run.ts";
import { Tally } from "./tally.ts";
import { type Change, violations } from "./violations.ts";

/** Seeded fault injection of delivery (../README.md). Without variables: the part of it that every change must pass. */

const number = (name: string, otherwise: number): number => Number(process.env[name] ?? otherwise);
const SEEDS = number("OPENSHELL_TEST_FAULTS_SEEDS", inMode({ root: 40, user: 0 }));
const FROM = number("OPENSHELL_TEST_FAULTS_FROM", 1);
const PARALLEL = number("OPENSHELL_TEST_FAULTS_PARALLEL", 4);
const VERBOSE = process.env["OPENSHELL_TEST_FAULTS_VERBOSE"] === "1";
/** Of one run among others on a busy machine. Milliseconds. */
const RUN_LIMIT_MS = 90_000;
/** From so many seeds on each step must have been met this often. */
const COUNTED_SEEDS = 40;
const TIMES = 5;

describe.skipIf(SEEDS === 0)("faults of delivery", () => {
  it(`${SEEDS} seeded runs: nothing by halves, nothing acknowledged is lost, nothing refused is applied`, {
    timeout: (SEEDS / PARALLEL + 1) * RUN_LIMIT_MS,
  }, async () => {
    const before = takeInventory();
    const counts = new Counts();
    const tally = new Tally();
    const reports: string[] = [];
    {
      await using net = await TestInternet.start();
      const origin = await Origin.start(net);
      const build = buildFolder();
      const programs = clockedBuild(build, mkdtempSync(join(tmpdir(), "clocked-")));
      const cli = [process.execPath, join(build, "cli.mjs")];
      const seeds = Array.from({ length: SEEDS }, (_, at) => FROM + at);
      const began = performance.now();
      let done = 0;
      const worker = async (): Promise<void> => {
        for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
          const startedAt = performance.now();
          const { ok, report } = await runDeliverySeed({ seed, net, origin, counts, tally, cli, programs });
          const took = `${((performance.now() - startedAt) / 1000).toFixed(1)} s`;
          const all = `${++done} of ${SEEDS} after ${((performance.now() - began) / 1000).toFixed(0)} s`;
          process.stdout.write(
            `delivery seed ${seed}: ${ok ? "ok" : "FAILED"}, ${took} (${all}, ${reports.length + (ok ? 0 : 1)} failed)\n`,
          );
          if (!ok) reports.push(report);
          if (!ok || VERBOSE) process.stdout.write(`${report}\n`);
        }
      };
      await Promise.all(Array.from({ length: PARALLEL }, worker));
      process.stdout.write(`What each step met:\n${counts.columns()}\n${tally.text()}\n`);
    }
    expect(reports.join("\n\n")).toBe("");
    if (SEEDS >= COUNTED_SEEDS) {
      const few = POINTS.map(({ phase, step }) => `${phase}:${step}`).filter((step) => counts.met(step) < TIMES);
      expect(few, `met fewer than ${TIMES} times`).toEqual([]);
    }
    // Two of each in every run, but for those whose messages were struck.
    for (const order of ["held", "swapped"] as const) expect(tally.apart[order]).toBeGreaterThanOrEqual(SEEDS / 2);
    await expectNoLeaks(before);
  });

  it("finds halves, returns and what was not asked for yet", () => {
    const changes: Change[] = [
      { kind: "policy", value: 1, sentAt: 10, acknowledgedAt: 12 },
      { kind: "credential", value: 1, sentAt: 20 },
      { kind: "policy", value: 2, sentAt: 30 },
    ];
    const seen = (version: number | undefined, serial: number, startedAt: number, arrivedAt = startedAt + 1) =>
      violations(changes, [{ version, serial, startedAt, arrivedAt }]).length;
    expect(seen(0, 0, 5)).toBe(0);
    expect(seen(1, 0, 15)).toBe(0);
    expect(seen(2, 1, 35)).toBe(0);
    // A credential with a policy that was replaced before it, and the other way round.
    expect(seen(0, 1, 25)).toBe(1);
    expect(seen(2, 0, 35)).toBe(1);
    // Before it was sent, after something newer was acknowledged, what only a refused policy allows.
    expect(seen(2, 1, 22)).toBe(1);
    expect(seen(0, 0, 15)).toBe(1);
    expect(seen(-1, 0, 15)).toBe(1);
    // What every policy allows shows the credential alone.
    expect(seen(undefined, 0, 15)).toBe(0);
    expect(seen(undefined, 1, 15)).toBe(1);
    const back = [1, 0].map((serial) => ({ version: 1, serial, startedAt: 25, arrivedAt: 26 }));
    expect(violations(changes, back)).toHaveLength(1);
  });
});

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { buildFolder } from "../functional/gateway/gateway-process.ts";
import { TestInternet } from "../support/internet/index.ts";
import { expectNoLeaks, takeInventory } from "../support/leaks.ts";
import { inMode } from "../support/modes.ts";
import { clockedBuild } from "./clocked-build.ts";
import { Counts } from "./counts.ts";
import { runSeed } from "./run.ts";
import { startSites } from "./sites.ts";

/** Seeded fault injection (README.md). Without variables: the part of it that every change must pass. */

const number = (name: string, otherwise: number): number => Number(process.env[name] ?? otherwise);
const SEEDS = number("OPENSHELL_TEST_FAULTS_SEEDS", inMode({ root: 30, user: 10 }));
const FROM = number("OPENSHELL_TEST_FAULTS_FROM", 1);
const PARALLEL = number("OPENSHELL_TEST_FAULTS_PARALLEL", 3);
const VERBOSE = process.env["OPENSHELL_TEST_FAULTS_VERBOSE"] === "1";
/** Of one run among others on a busy machine. Milliseconds. */
const RUN_LIMIT_MS = 90_000;

it(`${SEEDS} seeded runs with faults converge, lose nothing, leave nothing and report what happened`, {
  timeout: (SEEDS / PARALLEL + 1) * RUN_LIMIT_MS,
}, async () => {
  const before = takeInventory();
  const counts = new Counts();
  const reports: string[] = [];
  {
    await using net = await TestInternet.start();
    await startSites(net);
    const build = buildFolder();
    const programs = clockedBuild(build, mkdtempSync(join(tmpdir(), "clocked-")));
    const cli = [process.execPath, join(build, "cli.mjs")];
    const seeds = Array.from({ length: SEEDS }, (_, at) => FROM + at);
    const worker = async (): Promise<void> => {
      for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
        const startedAt = performance.now();
        const { ok, report } = await runSeed({ seed, net, counts, cli, programs });
        const took = `${((performance.now() - startedAt) / 1000).toFixed(1)} s`;
        process.stdout.write(`seed ${seed}: ${ok ? "ok" : "FAILED"}, ${took}\n`);
        if (!ok) reports.push(report);
        if (!ok || VERBOSE) process.stdout.write(`${report}\n`);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    process.stdout.write(`What each fault met:\n${counts.table()}\n`);
  }
  expect(reports.join("\n\n")).toBe("");
  await expectNoLeaks(before);
});

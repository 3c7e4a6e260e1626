import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { readRuns } from "./history.ts";
import { renderPage } from "./page.ts";

const RESULTS = resolve(import.meta.dirname, "../results");
const DEFAULT_PAGE = resolve(import.meta.dirname, "../../build/performance.html");

/** Draws the recorded runs of bench/results, kept and local ones, and says where the page is. */
export function report(out = DEFAULT_PAGE): void {
  const { runs, unreadable } = readRuns([RESULTS, resolve(RESULTS, "local")]);
  mkdirSync(dirname(out), { recursive: true });
  writeFileSync(out, renderPage(runs));
  if (unreadable > 0) console.error(`${unreadable} lines in bench/results are no run and were left out`);
  console.log(`${runs.length} runs: ${pathToFileURL(out)}`);
}

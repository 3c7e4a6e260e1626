import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { parseRuns, readRuns } from "./history.ts";
import { rate, run } from "./testing.ts";

const line = (value: unknown): string => `${JSON.stringify(value)}\n`;

it("reads runs oldest first, each once", () => {
  const [first, second] = [run(1, [rate(1)]), run(2, [rate(2)])];
  const { runs, unreadable } = parseRuns(line(second) + line(first) + line(second));
  expect(runs).toEqual([first, second]);
  expect(unreadable).toBe(0);
});

it("leaves out what is no run, and of a run what is no figure", () => {
  const good = run(1, [rate(1)]);
  const bad = [{}, null, [], 3, { ...good, at: "never" }, { ...good, machine: {} }, { ...good, results: "x" }];
  const text = `${bad.map(line).join("")}${line(good).slice(0, 40)}\n${line(good)}`;
  expect(parseRuns(text)).toEqual({ runs: [good], unreadable: bad.length + 1 });
  const odd = [
    {},
    null,
    { ...rate(1), measured: "1" },
    { ...rate(1), reference: 3 },
    { ...rate(1), limit: { atMost: "x" } },
  ];
  expect(parseRuns(line({ ...good, results: [...odd, rate(1)] })).runs).toEqual([good]);
  expect(parseRuns(line({ ...good, results: odd })).runs).toEqual([]);
});

it("reads every .jsonl file of the folders that exist", () => {
  const folder = mkdtempSync(join(tmpdir(), "openshell-report-"));
  try {
    writeFileSync(join(folder, "a.jsonl"), line(run(2, [rate(2)])));
    writeFileSync(join(folder, "b.jsonl"), line(run(1, [rate(1)])));
    writeFileSync(join(folder, "c.txt"), "no");
    expect(readRuns([folder, join(folder, "absent")])).toEqual({
      runs: [run(1, [rate(1)]), run(2, [rate(2)])],
      unreadable: 0,
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

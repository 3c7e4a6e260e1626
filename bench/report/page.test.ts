import { expect, it } from "vitest";
import { renderPage } from "./page.ts";
import { rate, run } from "./testing.ts";

const HOSTILE = `</svg></title><script>alert("x")</script><img src=x onerror='y'>&amp;\u0000`;

/** Every tag is closed in the order in which it was opened: enough that a browser draws what was meant. */
function expectBalanced(page: string): void {
  const open: string[] = [];
  const empty = new Set(["meta", "!doctype"]);
  for (const [, close, name, rest] of page.matchAll(/<(\/?)([a-zA-Z!][\w-]*)((?:"[^"]*"|[^">])*)>/g)) {
    if (empty.has(name!) || rest!.endsWith("/")) continue;
    if (close === "") open.push(name!);
    else expect(open.pop()).toBe(name);
  }
  expect(open).toEqual([]);
}

it("is one file: nothing is fetched and nothing runs", () => {
  const page = renderPage([run(1, [rate(120)]), run(2, [rate(90)])]);
  expectBalanced(page);
  expect(page).not.toMatch(/<(script|link|img|iframe)|https?:\/\/|@import|url\(/);
  expect(page).toContain("default-src 'none'");
});

it("says when there is nothing", () => {
  expect(renderPage([])).toContain("No run is recorded yet");
});

it("shows measured value, alternative, budget and verdict of a single run", () => {
  const page = renderPage([run(1, [rate(90, 1200)])]);
  expectBalanced(page);
  for (const text of ["90 /s", "1,200 /s", "budget 100", "◆ beyond", "0.075 × direct", "no earlier run"])
    expect(page).toContain(text);
  expect(page).not.toContain("in 1 runs");
});

it("draws every run with its verdict in form as well as colour, and names what changed", () => {
  const page = renderPage([run(1, [rate(90)]), run(2, [rate(400)])]);
  expectBalanced(page);
  expect(page).toMatch(
    /<path class="miss" d="[^"]+"><title>2026-01-01 01:00 abc1234: 90 \/s; direct 1,000 \/s<\/title>/,
  );
  expect(page).toMatch(/<circle class="pass" [^>]+><title>2026-01-01 02:00/);
  expect(page).toContain("▲ 4.44 ×");
});

it("text of a record stays text", () => {
  const result = {
    ...rate(120),
    id: `exec/${HOSTILE}`,
    what: HOSTILE,
    unit: HOSTILE as "ms",
    reference: { what: HOSTILE, value: 3 },
    budget: HOSTILE,
    details: { [HOSTILE]: 1 },
  };
  const machine = { cpu: HOSTILE, kernel: HOSTILE, node: HOSTILE, commit: HOSTILE, mode: HOSTILE as "root" };
  const runs = [run(1, [result], machine), run(2, [{ ...result, measured: 900 }], machine)];
  const page = renderPage(runs);
  expectBalanced(page);
  expect(page).not.toMatch(/<script|<img|onerror='|\0/);
});

it("numbers of any size make a page", () => {
  const values = [0, 1e-9, 1, 1e12, Number.MAX_VALUE];
  const runs = values.map((value, index) => run(index, [rate(value, values[4 - index])]));
  const page = renderPage(runs);
  expectBalanced(page);
  expect(page).not.toMatch(/NaN|Infinity|undefined/);
});

it("a hundred runs of sixty figures take well below a second", () => {
  const results = Array.from({ length: 60 }, (_, index) => rate(100 + index, 1000, `exec/${index}`));
  const runs = Array.from({ length: 100 }, (_, index) => run(index, results));
  const startedAt = process.cpuUsage();
  const page = renderPage(runs);
  const { user } = process.cpuUsage(startedAt);
  expect(user / 1000).toBeLessThan(1000);
  expect(page.length).toBeLessThan(3_000_000);
});

import { escapeText, number, shorten, withUnit } from "./markup.ts";
import type { Figure, Point } from "./model.ts";

/** Charts as SVG by hand. Colours come from the page's style; form says the same as colour. */

const WIDTH = 320;
const BAR = { top: 16, height: 12, step: 36 } as const;
const LABEL_CHARACTERS = 34;
const HISTORY = { left: 40, right: 8, top: 10, bottom: 18, height: 104 } as const;
/** Values further apart than this are drawn on a logarithmic axis. */
const LINEAR_FACTOR = 15;

const round = (value: number): number => Math.round(value * 10) / 10;

function limitOf({ result: { limit } }: Point): number | undefined {
  return limit?.atMost ?? limit?.atLeast;
}

/** Maps values to a length in pixels: from 0, or logarithmically where they are far apart. */
function scaleOf(values: readonly number[], length: number): { at(value: number): number; readonly log: boolean } {
  const positive = values.filter((value) => value > 0);
  const highest = Math.max(...positive, 0);
  const lowest = Math.min(...positive, highest);
  if (highest === 0) return { at: () => 0, log: false };
  const log = highest / lowest > LINEAR_FACTOR;
  const first = log ? Math.log(lowest / 2) : 0;
  const last = log ? Math.log(highest * 1.1) : highest * 1.08;
  const at = (value: number): number => {
    const place = log ? Math.log(Math.max(value, lowest / 2)) : Math.max(value, 0);
    return ((place - first) / (last - first)) * length;
  };
  return { at, log };
}

/** Form and class of a verdict: a filled circle within the budget, a diamond beyond it. */
function mark(point: Point, x: number, y: number, size: number): string {
  const { result } = point;
  const title = `<title>${escapeText(tooltip(point))}</title>`;
  const state = `${result.met === false ? "miss" : result.met ? "pass" : "plain"}${point.busy ? " busy" : ""}`;
  if (result.met !== false)
    return `<circle class="${state}" cx="${round(x)}" cy="${round(y)}" r="${size}">${title}</circle>`;
  const half = size * 1.4;
  const path = `M${round(x)} ${round(y - half)}l${half} ${half}l${-half} ${half}l${-half} ${-half}z`;
  return `<path class="${state}" d="${path}">${title}</path>`;
}

function tooltip({ at, commit, busy, result }: Point): string {
  const { reference } = result;
  const beside = reference === undefined ? "" : `; ${reference.what} ${withUnit(reference.value, result.unit)}`;
  const load = busy ? "; the machine was busy" : "";
  return `${at.slice(0, 16).replace("T", " ")} ${commit}: ${withUnit(result.measured, result.unit)}${beside}${load}`;
}

/** The latest run: the product, the alternative below it, and the budget across. */
export function bars({ latest }: Figure): string {
  const { result } = latest;
  const { reference, unit, measured } = result;
  const limit = limitOf(latest);
  const rows = [
    { what: "OpenShell", value: measured, kind: result.met === false ? "miss" : result.met ? "pass" : "plain" },
    ...(reference === undefined ? [] : [{ what: reference.what, value: reference.value, kind: "other" }]),
  ];
  const values = [...rows.map(({ value }) => value), ...(limit === undefined ? [] : [limit])];
  const { at, log } = scaleOf(values, WIDTH);
  const drawn = limit !== undefined && limit > 0;
  const height = rows.length * BAR.step + (drawn ? 12 : 0);
  const parts = rows.map(({ what, value, kind }, index) => {
    const top = index * BAR.step;
    const length = Math.max(value > 0 ? 2 : 0, round(at(value)));
    return `<text x="0" y="${top + 12}">${escapeText(shorten(what, LABEL_CHARACTERS))}</text>
<text class="value" x="${WIDTH}" y="${top + 12}">${escapeText(withUnit(value, unit))}</text>
<rect class="bar ${kind}" x="0" y="${top + BAR.top}" width="${length}" height="${BAR.height}" rx="2"/>`;
  });
  if (drawn) {
    const x = round(at(limit));
    const end = x > WIDTH / 2;
    // Across the bars, not across the text between them.
    const across = rows.map((_, index) => `M${x} ${index * BAR.step + BAR.top - 1}v${BAR.height + 4}`).join("");
    parts.push(`<path class="budget" d="${across}"/>
<text class="small ${end ? "value" : ""}" x="${x}" y="${height - 2}">budget ${escapeText(number(limit))}</text>`);
  }
  const scale = log ? `<text class="small middle" x="${WIDTH / 2}" y="12">log scale</text>` : "";
  const name = `${result.what}: ${rows.map(({ what, value }) => `${what} ${withUnit(value, unit)}`).join(", ")}`;
  return `<svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escapeText(name)}">${parts.join("")}${scale}</svg>`;
}

/** All runs that have the figure; empty for a single one, which the bars show already. */
export function history({ points, latest }: Figure): string {
  if (points.length < 2) return "";
  const { left, right, top, bottom, height } = HISTORY;
  const limit = limitOf(latest);
  const references = points.flatMap(({ result }) => result.reference?.value ?? []);
  const measured = points.map(({ result }) => result.measured);
  const values = [...measured, ...references, ...(limit === undefined ? [] : [limit])];
  if (values.every((value) => value <= 0)) return "";
  const { at, log } = scaleOf(values, height - top - bottom);
  const x = (index: number): number => left + ((WIDTH - left - right) * index) / (points.length - 1);
  const y = (value: number): number => height - bottom - at(value);
  const line = (kind: string, value: (point: Point) => number | undefined): string => {
    const places = points.flatMap((point, index) => {
      const found = value(point);
      return found === undefined ? [] : [`${round(x(index))} ${round(y(found))}`];
    });
    return places.length < 2 ? "" : `<path class="line ${kind}" d="M${places.join("L")}"/>`;
  };
  const parts = [
    `<path class="axis" d="M${left - 4} ${top}V${height - bottom}H${WIDTH}"/>`,
    ...ticks(Math.max(...values), log ? Math.min(...values.filter((value) => value > 0)) : 0).map(
      (value) =>
        `<text class="small value" x="${left - 7}" y="${round(y(value)) + 3}">${escapeText(compact(value))}</text>`,
    ),
    limit === undefined ? "" : `<path class="budget" d="M${left - 4} ${round(y(limit))}H${WIDTH}"/>`,
    line("other", ({ result }) => result.reference?.value),
    line("ours", ({ result }) => result.measured),
    ...points.map((point, index) => mark(point, x(index), y(point.result.measured), points.length > 30 ? 2.2 : 3.4)),
    `<text class="small" x="${left - 4}" y="${height - 4}">${escapeText(day(points[0]!))}</text>`,
    `<text class="small value" x="${WIDTH}" y="${height - 4}">${escapeText(day(points.at(-1)!))}</text>`,
    `<text class="small middle" x="${(WIDTH + left) / 2}" y="${height - 4}">${points.length} runs${log ? ", log scale" : ""}</text>`,
  ];
  const name = `${latest.result.what} in ${points.length} runs`;
  return `<svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escapeText(name)}">${parts.join("")}</svg>`;
}

/** The ends of an axis; one where all is 0. */
function ticks(highest: number, lowest: number): readonly number[] {
  return highest === lowest ? [highest] : [lowest, highest];
}

function day({ at }: Point): string {
  return at.slice(5, 16).replace("T", " ");
}

/** Four characters at most: 12k, 1.2M. */
function compact(value: number): string {
  if (value >= 1e6) return `${number(value / 1e6)}M`;
  return value >= 10_000 ? `${Math.round(value / 1000)}k` : number(value);
}

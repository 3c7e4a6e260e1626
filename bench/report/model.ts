import type { History, Machine, Result } from "../support/report.ts";

/** What the page shows, computed from recorded runs. Pure. */

/** Areas by the first part of a figure's id, in the order in which they are read. */
const AREAS: Readonly<Record<string, string>> = {
  create: "From a command to its output",
  exec: "Commands in a sandbox that stands",
  egress: "What leaves a sandbox",
  policy: "Policy",
  gateway: "The gateway and its API",
  rpc: "The gRPC lane beside other libraries",
  idle: "At rest",
  churn: "Sandboxes that come and go",
};
/** A run with so many areas is taken for a full one: figures that it lacks are measured no more. */
const FULL_RUN_AREAS = 6;
/** Runs of one chart; older ones stay in the files. */
const SHOWN_RUNS = 60;
/** A change below this may be noise, as a factor. */
const FLOOR = 1.1;
/** While there are too few runs to know how much a figure varies. */
const UNKNOWN_NOISE = 1.3;
const KNOWN_AFTER = 5;
/** Changes that are noise stay within so many typical deviations. */
const DEVIATIONS = 3;

/** A figure in one run. */
export interface Point {
  readonly at: string;
  readonly commit: string;
  /** Others used the machine: its load was above the number of its cores when the run began. */
  readonly busy: boolean;
  readonly result: Result;
}

export interface Figure {
  readonly id: string;
  /** Oldest first; at least one. */
  readonly points: readonly Point[];
  readonly latest: Point;
  /** The latest run has it. */
  readonly current: boolean;
  readonly higherIsBetter: boolean;
  /** Used share of the budget: 1 is the limit, below is within. Absent without a numeric limit. */
  readonly share?: number;
}

export interface Area {
  readonly name: string;
  readonly figures: readonly Figure[];
}

export interface Change {
  readonly figure: Figure;
  /** How many times better, above 1, or worse, below; measured as the ratio to the reference of the same run. */
  readonly factor: number;
}

export interface Model {
  readonly machine: Machine;
  readonly at: string;
  readonly runs: number;
  /** Runs of another machine, number of cores or mode: their figures do not compare. */
  readonly otherRuns: number;
  readonly areas: readonly Area[];
  readonly met: number;
  readonly judged: number;
  readonly better: readonly Change[];
  readonly worse: readonly Change[];
  /** Figures of the latest run that an earlier one has as well. */
  readonly compared: number;
}

/** Figures of runs on the same kind of machine in the same mode are shown together. */
function kindOf({ machine }: History): string {
  return [machine.mode, machine.cpu, machine.cores].join("\n");
}

export function isHigherBetter({ limit, unit }: Result): boolean {
  if (limit?.atLeast !== undefined) return true;
  if (limit?.atMost !== undefined) return false;
  return unit === "/s" || unit === "MB/s";
}

function shareOf({ limit, measured }: Result): number | undefined {
  if (limit?.atMost !== undefined) {
    if (limit.atMost > 0) return measured / limit.atMost;
    return measured > limit.atMost ? Number.POSITIVE_INFINITY : 0;
  }
  if (limit?.atLeast !== undefined) return measured > 0 ? limit.atLeast / measured : Number.POSITIVE_INFINITY;
  return undefined;
}

/** What is compared between runs: the machine's speed that day cancels out. */
function score({ reference, measured }: Result): number {
  return reference === undefined || reference.value === 0 ? measured : measured / reference.value;
}

/** The change since the run before, when it is more than the figure varies anyway. */
export function changeOf(figure: Figure): Change | undefined {
  const { points, higherIsBetter } = figure;
  const [before, now] = points.slice(-2);
  if (before === undefined || now === undefined) return undefined;
  const [was, is] = [score(before.result), score(now.result)];
  // A count that was 0, or became so, has no factor.
  if (was <= 0 || is <= 0) {
    if (was === is) return undefined;
    return { figure, factor: is > was === higherIsBetter ? Number.POSITIVE_INFINITY : 0 };
  }
  const factor = higherIsBetter ? is / was : was / is;
  const limit = noise(points.slice(0, -1)) * (before.busy || now.busy ? 2 : 1);
  return Math.abs(Math.log(factor)) > limit ? { figure, factor } : undefined;
}

/** How far a figure's runs differ without a reason, as the logarithm of a factor; by their median step. */
function noise(earlier: readonly Point[]): number {
  const scores = earlier.map(({ result }) => score(result)).filter((value) => value > 0);
  if (scores.length < KNOWN_AFTER) return Math.log(UNKNOWN_NOISE);
  const steps = scores.slice(1).map((value, index) => Math.abs(Math.log(value / scores[index]!)));
  const typical = steps.sort((a, b) => a - b)[steps.length >> 1]!;
  return Math.max(Math.log(FLOOR), DEVIATIONS * typical);
}

function areaOf(id: string): string {
  return id.split("/")[0]!;
}

function areasOf(results: readonly Result[]): number {
  return new Set(results.map(({ id }) => areaOf(id))).size;
}

function figureOf(id: string, points: readonly Point[], latestAt: string): Figure {
  const latest = points.at(-1)!;
  const share = shareOf(latest.result);
  return {
    id,
    points: points.slice(-SHOWN_RUNS),
    latest,
    current: latest.at === latestAt,
    higherIsBetter: isHigherBetter(latest.result),
    ...(share === undefined ? {} : { share }),
  };
}

/** The page's content; undefined when nothing was recorded. */
export function modelOf(recorded: readonly History[]): Model | undefined {
  const newest = recorded.at(-1);
  if (newest === undefined) return undefined;
  const runs = recorded.filter((run) => kindOf(run) === kindOf(newest));
  const points = new Map<string, Point[]>();
  for (const { at, machine, results } of runs) {
    for (const result of results) {
      const point = { at, commit: machine.commit, busy: machine.load > machine.cores, result };
      const known = points.get(result.id);
      if (known === undefined) points.set(result.id, [point]);
      else known.push(point);
    }
  }
  const fullAt = runs.findLast(({ results }) => areasOf(results) >= FULL_RUN_AREAS)?.at ?? "";
  const figures = [...points]
    .filter(([, own]) => Date.parse(own.at(-1)!.at) >= (Date.parse(fullAt) || 0))
    .map(([id, own]) => figureOf(id, own, newest.at));
  const grouped = Map.groupBy(figures, ({ id }) => areaOf(id));
  const order = [...Object.keys(AREAS), ...[...grouped.keys()].filter((key) => !Object.hasOwn(AREAS, key)).sort()];
  const areas = order.flatMap((key) => {
    const own = grouped.get(key);
    if (own === undefined) return [];
    return [{ name: Object.hasOwn(AREAS, key) ? AREAS[key]! : key, figures: own }];
  });
  const judged = figures.filter(({ latest }) => latest.result.met !== undefined);
  const current = figures.filter((figure) => figure.current);
  const changes = current.flatMap((figure) => changeOf(figure) ?? []);
  return {
    machine: newest.machine,
    at: newest.at,
    runs: runs.length,
    otherRuns: recorded.length - runs.length,
    areas,
    met: judged.filter(({ latest }) => latest.result.met).length,
    judged: judged.length,
    better: changes.filter(({ factor }) => factor > 1).sort((a, b) => b.factor - a.factor),
    worse: changes.filter(({ factor }) => factor < 1).sort((a, b) => a.factor - b.factor),
    compared: current.filter((figure) => figure.points.length > 1).length,
  };
}

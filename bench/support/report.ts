import { execFileSync } from "node:child_process";
import { appendFileSync, mkdirSync } from "node:fs";
import { availableParallelism, cpus, loadavg, release, totalmem } from "node:os";
import { dirname, resolve } from "node:path";

/** One figure beside the point of reference that the same run measured. */
export interface Result {
  /** Stable name, `suite/figure`. */
  readonly id: string;
  readonly what: string;
  readonly measured: number;
  readonly unit: "ms" | "µs" | "/s" | "MB/s" | "MB" | "kB" | "ms/s" | "count";
  readonly reference?: { readonly what: string; readonly value: number };
  /** The budget (docs/performance.md), in words. */
  readonly budget?: string;
  /** The same in the figure's unit, as it was for this run: some budgets depend on the point of reference. */
  readonly limit?: { readonly atMost?: number; readonly atLeast?: number };
  /** Whether the budget is met; absent where there is none. */
  readonly met?: boolean;
  /**
   * Whether it is met when the budget is scaled to this machine: the budget divided by the reference point that it
   * states, times the one measured here, or by a yardstick. Absent where there is neither.
   */
  readonly metScaled?: boolean;
  /** Further figures of the same measurement. */
  readonly details?: Readonly<Record<string, number>>;
}

/** Limits of a budget. `reference`: what §9's own machine gave for the point of reference. */
export interface Budget {
  readonly text: string;
  readonly atMost?: number;
  readonly atLeast?: number;
  readonly reference?: number;
  /** `atMost` for a machine as slow as this one, where a yardstick was measured (yardstick.ts). */
  readonly scaledAtMost?: number;
}

/** Judges a figure. */
export function judge(figure: Omit<Result, "budget" | "met" | "metScaled">, budget: Budget | undefined): Result {
  if (budget === undefined) return figure;
  const holds = (scale: number): boolean =>
    figure.measured <= (budget.atMost ?? Number.POSITIVE_INFINITY) * scale &&
    figure.measured >= (budget.atLeast ?? Number.NEGATIVE_INFINITY) * scale;
  const { scaledAtMost } = budget;
  const scaled =
    scaledAtMost !== undefined
      ? { metScaled: figure.measured <= scaledAtMost }
      : budget.reference === undefined || figure.reference === undefined
        ? {}
        : { metScaled: holds(figure.reference.value / budget.reference) };
  const { atMost, atLeast } = budget;
  const limit = { ...(atMost === undefined ? {} : { atMost }), ...(atLeast === undefined ? {} : { atLeast }) };
  return { ...figure, budget: budget.text, limit, met: holds(1), ...scaled };
}

export function verdict({ met, metScaled }: Result): string {
  if (met === undefined) return "";
  if (met) return "pass";
  return metScaled ? "miss; pass scaled" : "MISS";
}

function number(value: number): string {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  return value.toFixed(digits);
}

function cells(result: Result): readonly string[] {
  const { reference } = result;
  const details = Object.entries(result.details ?? {}).map(([key, value]) => `${key} ${number(value)}`);
  return [
    result.what,
    `${number(result.measured)} ${result.unit}`,
    reference === undefined ? "" : `${number(reference.value)} ${result.unit} (${reference.what})`,
    reference === undefined ? "" : number(result.measured / reference.value),
    result.budget ?? "",
    verdict(result),
    details.join(", "),
  ];
}

/** One line while the run goes on. */
export function line(result: Result): string {
  const [what, measured, reference, ratio, budget, said, details] = cells(result);
  const against = reference === "" ? "" : `  vs ${reference}, ratio ${ratio}`;
  const judged = budget === "" ? "" : `  [${budget}: ${said}]`;
  return `${what!.padEnd(58)} ${measured}${against}${judged}${details === "" ? "" : `  ${details}`}`;
}

/** All of them, as a Markdown table. */
export function table(results: readonly Result[]): string {
  const head = ["What", "Measured", "Beside it, same run", "Ratio", "Budget", "", "Further"];
  const rows = [head, head.map(() => "---"), ...results.map(cells)];
  return rows.map((row) => `| ${row.join(" | ")} |`).join("\n");
}

/** What the figures depend on. Names no person, no path and no host. */
export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGB: number;
  readonly kernel: string;
  readonly node: string;
  readonly mode: "root" | "user";
  /** Followed by `+` when what is built had further changes. */
  readonly commit: string;
  /** Load average of the last minute when the run began: above the number of cores, times are the machine's. */
  readonly load: number;
}

export function machine(): Machine {
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    cores: availableParallelism(),
    memoryGB: Math.round(totalmem() / 1e9),
    kernel: release(),
    node: process.version,
    mode: process.getuid?.() === 0 ? "root" : "user",
    commit: commit(),
    load: Math.round(loadavg()[0]! * 10) / 10,
  };
}

/** What the build is made of. */
const BUILT = ["openshell", "package-lock.json", "packages", "proto", "native", "tools"];

function commit(): string {
  try {
    const root = resolve(import.meta.dirname, "../..");
    const git = (...args: string[]): string => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim();
    const changed = git("status", "--porcelain", "--", ...BUILT) !== "";
    return `${git("rev-parse", "--short", "HEAD")}${changed ? "+" : ""}`;
  } catch {
    return "unknown";
  }
}

/** A file of one run. */
export interface History {
  readonly at: string;
  readonly seconds: number;
  readonly machine: Machine;
  readonly results: readonly Result[];
}

/** Appends a run as one line of JSON. */
export function append(path: string, history: History): void {
  mkdirSync(dirname(path), { recursive: true });
  const short = (key: string, value: unknown): unknown =>
    typeof value === "number" && key !== "seconds" ? Number(value.toPrecision(4)) : value;
  appendFileSync(path, `${JSON.stringify(history, short)}\n`);
}

/** Statistics of a neighbour's operations in quiet phases and under attack. */

export const MEASURES = ["keepalive", "connection", "dns", "command"] as const;
export type Measure = (typeof MEASURES)[number];

export interface Phase {
  /** Undefined: quiet. */
  readonly attack: string | undefined;
  /** Milliseconds of each operation. */
  readonly times: Readonly<Record<Measure, readonly number[]>>;
  readonly failures: readonly string[];
  /** How often the attacker did what it does. */
  readonly done: number;
}

export interface Figures {
  readonly count: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

export interface Compared {
  readonly attack: string;
  readonly done: number;
  readonly failures: readonly string[];
  readonly measures: Readonly<
    Record<Measure, { readonly quiet: Figures; readonly attacked: Figures; readonly ratio: number }>
  >;
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(sorted.length * share) - 1))] ?? Number.NaN;
}

/** Of all phases together: a 99th percentile of one phase would be its second slowest operation or so. */
function figures(phases: readonly Phase[], measure: Measure): Figures {
  const times = phases.flatMap((phase) => phase.times[measure]);
  return { count: times.length, p50: quantile(times, 0.5), p90: quantile(times, 0.9), p99: quantile(times, 0.99) };
}

/** Of each attack the quiet phases right before and after it count. */
export function compare(attack: string, phases: readonly Phase[]): Compared {
  const attacked = phases.filter((phase) => phase.attack === attack);
  const quiet = phases.filter(
    (phase, index) =>
      phase.attack === undefined && (phases[index - 1]?.attack === attack || phases[index + 1]?.attack === attack),
  );
  const measures = Object.fromEntries(
    MEASURES.map((measure) => {
      const before = figures(quiet, measure);
      const during = figures(attacked, measure);
      return [measure, { quiet: before, attacked: during, ratio: during.p99 / before.p99 }];
    }),
  ) as Compared["measures"];
  return {
    attack,
    done: attacked.reduce((sum, { done }) => sum + done, 0),
    failures: phases
      .filter(({ attack: name }) => name === attack || name === undefined)
      .flatMap(({ failures }) => failures),
    measures,
  };
}

/** One line an attack. */
export function table(compared: readonly Compared[]): string {
  const cell = ({ quiet, attacked, ratio }: Compared["measures"][Measure]): string =>
    `${quiet.p99.toFixed(2)}→${attacked.p99.toFixed(2)} ×${ratio.toFixed(2)} (p50 ${quiet.p50.toFixed(2)}→${attacked.p50.toFixed(2)})`;
  return compared
    .map(({ attack, done, measures, failures }) =>
      [
        `${attack} (${done})`.padEnd(24),
        ...MEASURES.map((measure) => `${measure} ${cell(measures[measure])}`.padEnd(52)),
        failures.length === 0 ? "" : `${failures.length} FAILED: ${failures[0]}`,
      ].join(" "),
    )
    .join("\n");
}

import type { SandboxLogLine } from "@openshell/api";
import { invalidField } from "@openshell/api/errors.ts";

/** Ranks of levels: a line passes when its rank is at most that of the wanted minimum. */
const RANKS: Readonly<Record<string, number>> = { ERROR: 0, WARN: 1, INFO: 2, OCSF: 2, DEBUG: 3, TRACE: 4 };
const UNKNOWN_RANK = 5;
const MAX_SOURCES = 8;

export interface LogFilter {
  readonly sources: ReadonlySet<string>;
  /** Undefined: every level. */
  readonly maxRank: number | undefined;
  /** Milliseconds since the epoch; undefined: from the beginning. */
  readonly sinceMs: number | undefined;
}

/** Reads the filters of a request. @throws ApiError INVALID_ARGUMENT. */
export function logFilter(
  request: { readonly sources: readonly string[]; readonly minLevel: string; readonly sinceMs: number | undefined },
  fields: { readonly sources: string; readonly minLevel: string },
): LogFilter {
  const { sources, minLevel, sinceMs } = request;
  if (sources.length > MAX_SOURCES) throw invalidField(fields.sources, `must have at most ${MAX_SOURCES} entries`);
  const unknown = sources.find((source) => source !== "gateway" && source !== "sandbox");
  if (unknown !== undefined) throw invalidField(fields.sources, 'must contain only "gateway" and "sandbox"');
  const maxRank = minLevel === "" ? undefined : RANKS[minLevel.toUpperCase()];
  if (minLevel !== "" && maxRank === undefined)
    throw invalidField(fields.minLevel, `must be one of ${Object.keys(RANKS).join(", ")}`);
  return { sources: new Set(sources), maxRank, sinceMs };
}

export function passesFilter(line: SandboxLogLine, filter: LogFilter): boolean {
  if (filter.sources.size > 0 && !filter.sources.has(line.source)) return false;
  if (filter.maxRank !== undefined && (RANKS[line.level.toUpperCase()] ?? UNKNOWN_RANK) > filter.maxRank) return false;
  return filter.sinceMs === undefined || timeOf(line) >= filter.sinceMs;
}

function timeOf(line: SandboxLogLine): number {
  const time = line.eventTime;
  return time === undefined ? 0 : Number(time.seconds) * 1000 + Math.floor(time.nanos / 1e6);
}

import { create } from "@bufbuild/protobuf";
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { invalidField } from "./errors.ts";

/** 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z: the range of google.protobuf.Timestamp. */
const MIN_SECONDS = -62_135_596_800n;
const MAX_SECONDS = 253_402_300_799n;
/** ±10,000 years: the range of google.protobuf.Duration. */
const MAX_DURATION_SECONDS = 315_576_000_000n;
const MAX_NANOS = 999_999_999;

/** What is wrong with a timestamp. Absent, the epoch and any other time are three different things; absence is not checked here. */
export function timestampProblem(time: Timestamp): string | undefined {
  if (time.seconds < MIN_SECONDS || time.seconds > MAX_SECONDS) return "must be a time of the years 1 to 9999";
  if (time.nanos < 0 || time.nanos > MAX_NANOS) return "must have nanos between 0 and 999,999,999";
  return undefined;
}

/** What is wrong with a duration that may be negative. */
export function durationProblem(duration: Duration): string | undefined {
  const { seconds, nanos } = duration;
  if (seconds < -MAX_DURATION_SECONDS || seconds > MAX_DURATION_SECONDS) return "must be within 10,000 years";
  if (Math.abs(nanos) > MAX_NANOS) return "must have nanos between -999,999,999 and 999,999,999";
  if ((seconds > 0n && nanos < 0) || (seconds < 0n && nanos > 0)) return "must have seconds and nanos of the same sign";
  return undefined;
}

/**
 * Milliseconds since the epoch, rounded down, or undefined when absent.
 *
 * @throws ApiError INVALID_ARGUMENT out of bounds.
 */
export function readTimestamp(time: Timestamp | undefined, field: string): number | undefined {
  if (time === undefined) return undefined;
  const problem = timestampProblem(time);
  if (problem !== undefined) throw invalidField(field, problem);
  return Number(time.seconds) * 1000 + Math.floor(time.nanos / 1e6);
}

/**
 * Milliseconds of a duration that must not be negative, rounded up so that a short limit never becomes none; undefined when absent.
 *
 * @throws ApiError INVALID_ARGUMENT out of bounds or above `maxMs`.
 */
export function readDuration(
  duration: Duration | undefined,
  field: string,
  maxMs = Number.POSITIVE_INFINITY,
): number | undefined {
  if (duration === undefined) return undefined;
  const problem = durationProblem(duration);
  if (problem !== undefined) throw invalidField(field, problem);
  if (duration.seconds < 0n || duration.nanos < 0) throw invalidField(field, "must not be negative");
  const ms = Number(duration.seconds) * 1000 + Math.ceil(duration.nanos / 1e6);
  if (ms > maxMs) throw invalidField(field, `must be at most ${maxMs / 1000} s`);
  return ms;
}

/** Milliseconds since the epoch of a timestamp that is known to be within bounds. */
export function timestampMs(time: Timestamp): number {
  return Number(time.seconds) * 1000 + time.nanos / 1e6;
}

/** A timestamp of milliseconds since the epoch. */
export function toTimestamp(ms: number): Timestamp {
  const seconds = Math.floor(ms / 1000);
  return create(TimestampSchema, { seconds: BigInt(seconds), nanos: Math.floor((ms - seconds * 1000) * 1e6) });
}

/** A duration of milliseconds, 0 or more. */
export function toDuration(ms: number): Duration {
  const seconds = Math.floor(ms / 1000);
  return create(DurationSchema, { seconds: BigInt(seconds), nanos: Math.floor((ms - seconds * 1000) * 1e6) });
}

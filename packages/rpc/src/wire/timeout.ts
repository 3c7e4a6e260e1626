import { StatusCode, StatusError } from "./status.ts";

const UNITS: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1_000, m: 1, u: 1e-3, n: 1e-6 };
/** setTimeout takes no more; a longer deadline (24 days) is none. */
export const MAX_TIMER_MS = 0x7fff_ffff;

/** `grpc-timeout` in milliseconds. @throws StatusError INVALID_ARGUMENT */
export function parseTimeout(text: string): number {
  const match = /^(\d{1,8})([HMSmun])$/.exec(text);
  if (match === null) {
    throw new StatusError(
      StatusCode.invalidArgument,
      `grpc-timeout: ${JSON.stringify(text)} is no timeout such as "500m"`,
    );
  }
  return Number(match[1]) * UNITS[match[2]!]!;
}

/** A `grpc-timeout` of at most 8 digits, rounded up so that the server never gives up first. */
export function formatTimeout(ms: number): string {
  const whole = Math.max(1, Math.ceil(ms));
  if (whole < 1e8) return `${whole}m`;
  const seconds = Math.ceil(whole / 1000);
  return seconds < 1e8 ? `${seconds}S` : "99999999H";
}

import { getSystemErrorMap } from "node:util";

/** `EPERM: operation not permitted` for a kernel errno. */
export function describeErrno(errno: number): string {
  const entry = getSystemErrorMap().get(-errno);
  return entry === undefined ? `error ${errno}` : `${entry[0]}: ${entry[1]}`;
}

/** `EPERM` for 1; `E1234` when Node knows no name. */
export function errnoName(errno: number): string {
  return getSystemErrorMap().get(-errno)?.[0] ?? `E${errno}`;
}

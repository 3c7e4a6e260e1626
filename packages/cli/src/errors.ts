import type { ErrorReason } from "@openshell/base/catalogue/api.ts";
import { CALL_CODES, type CallCode } from "@openshell/base/catalogue/calls.ts";
import type { CommandLineCode } from "@openshell/base/catalogue/command-line.ts";
import { RUNTIME_ERRORS, type RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import type { RuntimeError } from "@openshell/base/errors.ts";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { RpcError } from "./transport/rpc-error.ts";

/** Exit statuses of the command line (the rest are the sandboxed command's own). */
export const EXIT = {
  ok: 0,
  failure: 1,
  usage: 2,
  /** Input or output of a command could not be delivered. */
  delivery: 74,
  /** A wait ran out of time. */
  timeout: 124,
  notExecutable: 126,
  notFound: 127,
  interrupted: 130,
} as const;

const NAME = "CliError";

/** Codes of the catalogue that an error of the command line can have. */
export type ErrorCode = CommandLineCode | CallCode | ErrorReason | RuntimeErrorCode;

/** An error with everything that a person is shown: what happened, what to do next, and the exit status. */
export class CliError extends Error {
  /** Imperative sentences, one a line; empty when nothing helps. */
  readonly next: readonly string[];
  readonly exitCode: number;
  /** Single problems behind the message, one a line. */
  readonly details: readonly string[];
  /** Stable; its meaning is in the catalogue. */
  readonly code: ErrorCode;

  constructor(
    message: string,
    options: {
      readonly code: ErrorCode;
      readonly next?: string | readonly string[];
      readonly exitCode?: number;
      readonly details?: readonly string[];
      readonly cause?: unknown;
    },
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = NAME;
    this.next = typeof options.next === "string" ? [options.next] : (options.next ?? []);
    this.exitCode = options.exitCode ?? EXIT.failure;
    this.details = options.details ?? [];
    this.code = options.code;
  }

  /** By name: the bundles of the command line each have a copy of this class. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof Error && value.name === NAME;
  }
}

/** The code of an error of any kind. A gateway of another version may give a reason that is not in this catalogue. */
export function codeOf(error: unknown): ErrorCode {
  if (error instanceof CliError || isRuntimeError(error)) return error.code;
  if (error instanceof RpcError) return error.reason === "" ? error.code : (error.reason as ErrorReason);
  return "internal";
}

/** Characters of a value that an error repeats: enough to know it again. */
const MAX_QUOTED = 160;

/** A value as errors repeat it: in quotes, one line, escaped and shortened. */
export function quote(text: string): string {
  const shown = text.length <= MAX_QUOTED ? text : `${text.slice(0, MAX_QUOTED)}…`;
  return escapeUntrusted(JSON.stringify(shown), 8 * MAX_QUOTED);
}

/** Wrong use of a command: exit status 2. */
export function usageError(message: string, next: string): CliError {
  return new CliError(message, { code: "usage", next, exitCode: EXIT.usage });
}

/** Commands that list resources, by kind. */
const LISTS: Readonly<Record<string, string>> = {
  sandbox: "openshell sandbox list",
  provider: "openshell provider list",
  "policy revision": "openshell policy list",
};

/** The errors of other packages, by name for the same reason. */
function isRuntimeError(error: unknown): error is RuntimeError {
  return error instanceof Error && error.name === "RuntimeError";
}

/** Any error as the one form that is shown. Nothing of an unknown error but its message gets out. */
export function toCliError(error: unknown): CliError {
  if (error instanceof CliError) return error;
  if (error instanceof RpcError) return fromRpc(error);
  if (isRuntimeError(error))
    return new CliError(error.message, {
      next: error.next === "" ? RUNTIME_ERRORS[error.code][1] : error.next,
      code: error.code,
    });
  const message = error instanceof Error ? error.message : String(error);
  return new CliError(`unexpected error: ${message}`, {
    code: codeOf(error),
    next: "Try again; if it stays, report it with the command and `openshell --version`",
    cause: error,
  });
}

function fromRpc(error: RpcError): CliError {
  const violations = error.violations.map(
    ({ field, description }) => `${escapeUntrusted(field)}: ${escapeUntrusted(description)}`,
  );
  const [only, ...more] = violations;
  // The gateway's message repeats the first violation, for clients that show nothing else.
  const repeated = only !== undefined && error.message.includes(only);
  const details = repeated && more.length === 0 ? [] : violations;
  const { resource } = error;
  if (error.code === "not_found" && resource !== undefined && !error.message.includes(resource.name)) {
    const kind = escapeUntrusted(resource.kind);
    const list = LISTS[resource.kind];
    return new CliError(`${kind} ${JSON.stringify(escapeUntrusted(resource.name))} does not exist`, {
      code: codeOf(error),
      next: list === undefined ? CALL_CODES.not_found[1] : `\`${list}\` shows what there is`,
      cause: error,
    });
  }
  // The gateway puts its own next step behind the message; only a bare message gets ours.
  const fallback = CALL_CODES[error.code][1];
  const hasNext = /[.!?] [A-Z`]/.test(error.message);
  const message = repeated && more.length > 0 ? `${violations.length} fields of the request are wrong` : error.message;
  return new CliError(escapeUntrusted(message, 2048), {
    code: codeOf(error),
    details,
    next: hasNext ? [] : fallback,
    cause: error,
  });
}

/** Characters of one line about an error; and of lines below it. */
const MAX_LINE = 2048;
const MAX_DETAILS = 100;

/** The lines shown for an error. Whatever its texts hold, each is one line that a terminal shows and does not obey. */
export function errorLines(error: CliError, bold: (text: string) => string = (text) => text): readonly string[] {
  return [
    `${bold("error:")} ${escapeUntrusted(error.message, MAX_LINE)}`,
    ...error.details.slice(0, MAX_DETAILS).map((detail) => `  - ${escapeUntrusted(detail, MAX_LINE)}`),
    ...(error.details.length > MAX_DETAILS ? [`  - and ${error.details.length - MAX_DETAILS} more`] : []),
    ...error.next.map((next) => `  ${bold("next:")} ${escapeUntrusted(next, MAX_LINE)}`),
    // Wrong use has its own exit status, and a next step that is all there is to say.
    ...(error.code === "usage" ? [] : [`  ${bold("code:")} ${escapeUntrusted(error.code, 64)}`]),
  ];
}

import type { RuntimeErrorCode } from "./catalogue/runtime.ts";

/**
 * The one error family of the project.
 *
 * Every error carries a stable machine code, says what happened, and says what to do next. `cause` keeps the error of
 * the library or kernel below; it is for logs at debug level and never shown to a client. No secret may appear in any field.
 */
export class RuntimeError extends Error {
  /** Stable; its meaning is in the catalogue, and in docs/errors.md. */
  readonly code: RuntimeErrorCode;
  /** What the reader can do about it: one sentence, imperative. Empty when there is nothing to do. */
  readonly next: string;

  constructor(
    code: RuntimeErrorCode,
    message: string,
    options: { readonly next?: string; readonly cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "RuntimeError";
    this.code = code;
    this.next = options.next ?? "";
  }
}

/** Message and next step as one line for a person. */
export function describeError(error: unknown): string {
  if (error instanceof RuntimeError) return error.next === "" ? error.message : `${error.message}. ${error.next}`;
  return error instanceof Error ? error.message : String(error);
}

/** The `code` of a Node system error (`ENOENT`, `ECONNRESET`, …), else undefined. */
export function systemCode(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null | undefined)?.code;
  return typeof code === "string" ? code : undefined;
}

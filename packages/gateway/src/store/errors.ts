import { RuntimeError } from "@openshell/base";

/** What a caller of the store can meet; everything else is a bug or a broken disk. */
export type StoreErrorCode =
  /** A command's expectation failed: the row is gone or has another version. */
  | "store_conflict"
  /** A unique key is taken. */
  | "store_already_exists"
  /** The row that a command needs does not exist. */
  | "store_not_found"
  /** A named limit (admissions of a caller, id blocks) is reached. */
  | "store_limit_reached"
  /** More writes wait than the queue holds. Nothing was done. */
  | "store_overloaded"
  /** The disk, or the user's quota on it, is full. Nothing was stored. */
  | "store_full"
  /** Another program has held the database locked for longer than the writer waits. Nothing was stored. */
  | "store_busy"
  /** The database refused the write; nothing of it was stored. */
  | "store_write_failed"
  /** The writer is closed or has failed. */
  | "store_closed";

export class StoreError extends RuntimeError {
  declare readonly code: StoreErrorCode;
  /** Label of the expectation that failed, as its command names it (`sandbox`, `intent`, …); empty otherwise. */
  readonly subject: string;

  constructor(
    code: StoreErrorCode,
    message: string,
    options: { readonly next?: string; readonly cause?: unknown; readonly subject?: string } = {},
  ) {
    super(code, message, options);
    this.name = "StoreError";
    this.subject = options.subject ?? "";
  }
}

/** True for a StoreError with this code. */
export function isStoreError(error: unknown, code: StoreErrorCode): error is StoreError {
  return error instanceof StoreError && error.code === code;
}

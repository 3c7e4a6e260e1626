import { Code, ConnectError } from "@connectrpc/connect";
import {
  ApiError,
  failedPrecondition,
  notFound,
  resourceExhausted,
  unavailable,
  versionConflict,
} from "@openshell/api/errors.ts";
import { RuntimeError, systemCode } from "@openshell/base";
import { StatusError } from "@openshell/rpc/wire/status.ts";
import { StoreError } from "../store/errors.ts";

/** A gateway that is replaced is there again after about this long. Milliseconds. */
const RESTART_MS = 1_000;

/** What a client may see of an error of the gateway's own parts; undefined: nothing but INTERNAL. */
export function translateError(error: unknown): ApiError | undefined {
  if (error instanceof StoreError) return fromStore(error);
  if (error instanceof RuntimeError && error.code === "gateway_stopping") {
    return unavailable(error.message, { next: "Try again", retryDelayMs: RESTART_MS });
  }
  if (error instanceof RuntimeError && error.code === "global_policy_missing")
    return failedPrecondition(error.message, { next: error.next });
  const shortage = systemShortage(error);
  if (shortage !== undefined) return shortage;
  // What the lane found wrong with the bytes of a caller is that caller's affair, and no failure of ours.
  if (error instanceof ConnectError && error.cause instanceof StatusError) {
    return new ApiError(error.code, error.rawMessage, { cause: error });
  }
  return undefined;
}

/** Causes of an error are looked at down to here. */
const MAX_CAUSES = 4;

/** What the machine is short of for the moment, as the system's error says; undefined for every other error. */
function systemShortage(error: unknown): ApiError | undefined {
  let cause = error;
  for (let depth = 0; depth < MAX_CAUSES && cause instanceof Error; depth++, cause = cause.cause) {
    switch (systemCode(cause)) {
      case "EMFILE":
      case "ENFILE":
        return unavailable("the gateway has too many open files", {
          next: "Try again; if it stays, start the gateway with a higher limit (ulimit -n)",
          cause: error,
        });
      case "ENOSPC":
      case "EDQUOT":
        return resourceExhausted("the disk with the gateway's files is full", {
          next: "Free space there, then try again",
          cause: error,
        });
      case "ENOMEM":
      case "EAGAIN":
        return unavailable("the machine has no memory or no processes left for this", {
          next: "Try again when it has less to do",
          cause: error,
        });
    }
  }
  return undefined;
}

function fromStore(error: StoreError): ApiError | undefined {
  const kind = error.subject === "" ? "resource" : error.subject;
  switch (error.code) {
    case "store_conflict":
      return versionConflict(kind, "");
    case "store_already_exists":
      return new ApiError(Code.AlreadyExists, error.message, { next: "Choose another name" });
    case "store_not_found":
      return notFound(kind, "");
    case "store_full":
    case "store_limit_reached":
      return resourceExhausted(error.message, { next: error.next });
    case "store_overloaded":
      return unavailable(error.message, { next: "Try again", retryDelayMs: 100 });
    case "store_busy":
      return unavailable(error.message, { next: error.next, retryDelayMs: RESTART_MS });
    case "store_closed":
      // Whether the last write was stored is not known: no promise that a repetition is safe.
      return unavailable("the gateway is stopping", { next: "Look at what was stored, then try again", cause: error });
    case "store_write_failed":
      return undefined;
  }
}

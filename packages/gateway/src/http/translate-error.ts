import { Code, ConnectError } from "@connectrpc/connect";
import { ApiError, notFound, resourceExhausted, unavailable, versionConflict } from "@openshell/api/errors.ts";
import { RuntimeError } from "@openshell/base";
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
  // What the lane found wrong with the bytes of a caller is that caller's affair, and no failure of ours.
  if (error instanceof ConnectError && error.cause instanceof StatusError) {
    return new ApiError(error.code, error.rawMessage, { cause: error });
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

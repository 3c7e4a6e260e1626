import { Code } from "@connectrpc/connect";
import { ApiError } from "@openshell/api/errors.ts";
import { DriverError, type DriverErrorCode } from "@openshell/drivers/driver.ts";

const CODES: Partial<Record<DriverErrorCode, Code>> = {
  invalid_intent: Code.InvalidArgument,
  invalid_driver_config: Code.InvalidArgument,
  volume_invalid: Code.InvalidArgument,
  volume_refused: Code.PermissionDenied,
  identity_refused: Code.FailedPrecondition,
  volume_unavailable: Code.FailedPrecondition,
  capture_unavailable: Code.FailedPrecondition,
  sandbox_not_found: Code.NotFound,
};

/** A driver's refusal as the caller sees it; anything else is passed on. */
export function driverError(error: unknown): unknown {
  if (!(error instanceof DriverError)) return error;
  const code = CODES[error.code as DriverErrorCode] ?? (error.retryable ? Code.Unavailable : Code.FailedPrecondition);
  return new ApiError(code, error.message, { next: error.next, cause: error });
}

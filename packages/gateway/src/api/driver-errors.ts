import { Code } from "@connectrpc/connect";
import { ApiError, invalidArgument } from "@openshell/api/errors.ts";
import { DriverError, type DriverErrorCode } from "@openshell/drivers/driver.ts";

/** What of a CreateSandbox request a driver finds wrong. */
const FIELDS: Partial<Record<DriverErrorCode, string>> = {
  invalid_intent: "spec",
  invalid_driver_config: "spec.template.driver_config.local",
  image_invalid: "spec.template.driver_config.local.root",
  volume_invalid: "spec.template.driver_config.local.volumes",
};

const CODES: Partial<Record<DriverErrorCode, Code>> = {
  image_refused: Code.PermissionDenied,
  image_unavailable: Code.FailedPrecondition,
  volume_refused: Code.PermissionDenied,
  identity_refused: Code.FailedPrecondition,
  volume_unavailable: Code.FailedPrecondition,
  capture_unavailable: Code.FailedPrecondition,
  sandbox_not_found: Code.NotFound,
};

/** A driver's refusal as the caller sees it; anything else is passed on. */
export function driverError(error: unknown): unknown {
  if (!(error instanceof DriverError)) return error;
  const field = FIELDS[error.code as DriverErrorCode];
  if (field !== undefined)
    return invalidArgument([{ field, description: error.message }], { next: error.next, cause: error });
  const code = CODES[error.code as DriverErrorCode] ?? (error.retryable ? Code.Unavailable : Code.FailedPrecondition);
  return new ApiError(code, error.message, { next: error.next, cause: error });
}

import { create, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import type { ErrorReason } from "@openshell/base/catalogue/api.ts";
import { type ErrorDetails, gatherDetails } from "./error-details.ts";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  ResourceInfoSchema,
  RetryInfoSchema,
} from "./generated/google/rpc/error_details_pb.js";
import { cutBytes, escapeControls, shown, utf8Length } from "./text.ts";
import { type FieldViolation, MAX_DESCRIPTION, MAX_FIELD_PATH, type Violations } from "./violations.ts";

/** `ErrorInfo.domain` of every reason below; public clients compare it. */
export const ERROR_DOMAIN = "openshell.nvidia.com";

/**
 * Bytes of an error in the trailers, where common clients (grpc-core: Python, C++, Ruby) accept 8 KiB in all: the message stands
 * there twice, percent-encoded (three bytes for each byte at worst) and in the envelope, which is base64.
 */
const MAX_MESSAGE_BYTES = 1024;
const MAX_VIOLATION_BYTES = 1536;
/** Characters of a resource's name; longer ones are of no resource. */
const MAX_RESOURCE_NAME = 256;

export type { ErrorReason } from "@openshell/base/catalogue/api.ts";

/** Parts of an {@link ApiError} beside code and message. */
export interface ApiErrorOptions {
  /** What the caller can do: one imperative sentence, appended to the message that clients show. */
  readonly next?: string;
  readonly reason?: ErrorReason;
  /** `ErrorInfo.metadata`; only sent together with a reason. */
  readonly metadata?: Readonly<Record<string, string>>;
  readonly violations?: readonly FieldViolation[];
  /** Least wait before a retry, in milliseconds. */
  readonly retryDelayMs?: number;
  /** The resource that the error is about. */
  readonly resource?: { readonly kind: string; readonly name: string };
  /** The error below: for logs, never sent. */
  readonly cause?: unknown;
}

interface Detail {
  readonly desc: DescMessage;
  readonly value: MessageShape<DescMessage>;
}

/**
 * The one error that handlers of the public API throw. It is a ConnectError, so every transport writes the status code, the message and the
 * details envelope (`grpc-status-details-bin`) from this single object: clients ignore an envelope that disagrees with the transport status.
 *
 * No secret may appear in any part.
 */
export class ApiError extends ConnectError {
  readonly reason: ErrorReason | undefined;
  readonly next: string;

  constructor(code: Code, message: string, options: ApiErrorOptions = {}) {
    const next = cutBytes(escapeControls(options.next ?? "", true), MAX_MESSAGE_BYTES / 2);
    super(messageOf(message, next), code, undefined, detailsOf(options), options.cause);
    this.reason = options.reason;
    this.next = next;
  }

  /** ConnectError recognises errors of other copies of itself by shape; an ApiError is recognised by class alone. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return (
      typeof value === "object" && value !== null && Object.prototype.isPrototypeOf.call(ApiError.prototype, value)
    );
  }
}

/** Cause and next step in one text. The cause gives way when both are too long. */
function messageOf(message: string, next: string): string {
  const rest = next === "" ? "" : `. ${next}`;
  return cutBytes(escapeControls(message, true), MAX_MESSAGE_BYTES - utf8Length(rest)) + rest;
}

/** As many violations as fit, at least one. Field paths may hold what the caller chose. */
function fitting(violations: readonly FieldViolation[]): FieldViolation[] {
  const kept: FieldViolation[] = [];
  let bytes = 0;
  for (const violation of violations) {
    const field = shown(violation.field, MAX_FIELD_PATH);
    const description = shown(violation.description, MAX_DESCRIPTION - 1);
    bytes += utf8Length(field) + utf8Length(description);
    if (bytes > MAX_VIOLATION_BYTES && kept.length > 0) break;
    kept.push({ field, description });
  }
  return kept;
}

function detailsOf(options: ApiErrorOptions): Detail[] {
  const details: Detail[] = [];
  if (options.reason !== undefined) {
    const info = create(ErrorInfoSchema, {
      reason: options.reason,
      domain: ERROR_DOMAIN,
      metadata: { ...options.metadata },
    });
    details.push({ desc: ErrorInfoSchema, value: info });
  }
  if (options.violations !== undefined && options.violations.length > 0) {
    const fieldViolations = fitting(options.violations);
    details.push({ desc: BadRequestSchema, value: create(BadRequestSchema, { fieldViolations }) });
  }
  if (options.retryDelayMs !== undefined) {
    details.push({
      desc: RetryInfoSchema,
      value: create(RetryInfoSchema, { retryDelay: durationFromMs(options.retryDelayMs) }),
    });
  }
  if (options.resource !== undefined) {
    const { kind } = options.resource;
    const name = shown(options.resource.name, MAX_RESOURCE_NAME);
    details.push({
      desc: ResourceInfoSchema,
      value: create(ResourceInfoSchema, { resourceType: kind, resourceName: name }),
    });
  }
  return details;
}

/** INVALID_ARGUMENT with all violations; the message names the first, for clients that show nothing else. */
export function invalidArgument(violations: readonly FieldViolation[], options: ApiErrorOptions = {}): ApiError {
  const [first, ...more] = violations;
  const message =
    first === undefined
      ? "invalid request"
      : `${shown(first.field, MAX_FIELD_PATH)}: ${shown(first.description, MAX_DESCRIPTION - 1)}`;
  const rest = more.length === 0 ? "" : ` (and ${more.length} more)`;
  return new ApiError(Code.InvalidArgument, message + rest, { reason: "INVALID_ARGUMENT", ...options, violations });
}

/** INVALID_ARGUMENT for one field. */
export function invalidField(field: string, description: string): ApiError {
  return invalidArgument([{ field, description }]);
}

/** UNIMPLEMENTED for a field of an RPC that is built: what the field asks for is not, and nothing was done. */
export function unsupportedField(field: string, description: string, next: string): ApiError {
  const violations = [{ field, description }];
  return new ApiError(Code.Unimplemented, `${field}: ${description}`, { next, violations });
}

/** Throws {@link invalidArgument} when anything was found. */
export function throwIfInvalid(violations: Violations): void {
  if (!violations.isEmpty) throw invalidArgument(violations.list);
}

/**
 * NOT_FOUND. The message is exactly `<kind> not found`: clients compare `sandbox not found` and `service endpoint not found`, and a missing
 * resource must read the same as one that the caller may not see. The name travels in ResourceInfo.
 */
export function notFound(kind: string, name: string): ApiError {
  return new ApiError(Code.NotFound, `${kind} not found`, { resource: { kind, name } });
}

function named(kind: string, name: string): string {
  return name === "" ? `the ${kind}` : `${kind} "${name}"`;
}

/** ALREADY_EXISTS. */
export function alreadyExists(
  kind: string,
  name: string,
  next = "Choose another name or delete the existing one",
): ApiError {
  return new ApiError(Code.AlreadyExists, `${named(kind, name)} already exists`, { next, resource: { kind, name } });
}

/** FAILED_PRECONDITION: right request, wrong state. */
export function failedPrecondition(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.FailedPrecondition, message, options);
}

/** PERMISSION_DENIED: known caller, not allowed. */
export function permissionDenied(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.PermissionDenied, message, options);
}

/** UNAUTHENTICATED: no or bad credentials. */
export function unauthenticated(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.Unauthenticated, message, options);
}

/** RESOURCE_EXHAUSTED: a named limit was reached. */
export function resourceExhausted(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.ResourceExhausted, message, options);
}

/** OUT_OF_RANGE: a position, such as a watch cursor, that is no longer held. */
export function outOfRange(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.OutOfRange, message, options);
}

/** UNAVAILABLE: try again later; give `retryDelayMs` where it is known. */
export function unavailable(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.Unavailable, message, options);
}

/** DEADLINE_EXCEEDED: a limit of the server ended the call; its outcome is unknown unless the message says otherwise. */
export function deadlineExceeded(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.DeadlineExceeded, message, options);
}

/** UNIMPLEMENTED. */
export function unimplemented(message: string, options: ApiErrorOptions = {}): ApiError {
  return new ApiError(Code.Unimplemented, message, options);
}

/** INTERNAL with a fixed text: what really happened stays in `cause`, for the log. */
export function internal(cause: unknown): ApiError {
  return new ApiError(Code.Internal, "internal error", { next: "See the gateway log for this request", cause });
}

/** ABORTED after a failed compare-and-swap on a resource version. `current` is the stored version, when known. */
export function versionConflict(kind: string, name: string, current?: bigint): ApiError {
  return new ApiError(Code.Aborted, `${named(kind, name)} was changed by another request`, {
    next: "Read it again and repeat the change on the current version",
    reason: "RESOURCE_VERSION_CONFLICT",
    metadata: {
      recovery: "REFRESH_STATE",
      ...(current === undefined ? {} : { current_resource_version: current.toString() }),
    },
    resource: { kind, name },
  });
}

/** UNAVAILABLE: another change of the same resource held its lock for too long. */
export function mutationLockTimeout(kind: string, name: string, retryDelayMs: number): ApiError {
  return unavailable(`${named(kind, name)} is busy with another change`, {
    next: "Try again",
    reason: "MUTATION_LOCK_TIMEOUT",
    retryDelayMs,
    resource: { kind, name },
  });
}

/** FAILED_PRECONDITION family of durable request ids. */
export type RequestIdReason = Extract<ErrorReason, `REQUEST_${string}`>;

const requestIdTexts: Readonly<Record<RequestIdReason, readonly [message: string, next: string]>> = {
  REQUEST_ID_PAYLOAD_MISMATCH: [
    "this request_id was used for a different request",
    "Use a new request_id for a new intent, or repeat the original request unchanged",
  ],
  REQUEST_OUTCOME_UNCERTAIN: [
    "a request with this request_id was started and its success is not confirmed",
    "Read the resource to learn what happened; do not repeat the change under another request_id before that",
  ],
  REQUEST_REPLAY_UNAVAILABLE: [
    "the result of this request_id can no longer be repeated",
    "Read the resource to learn its current state",
  ],
  REQUEST_STREAM_UNAVAILABLE: [
    "the execution of this request_id has ended and its output is not kept",
    "Start a new execution with a new request_id",
  ],
};

/** FAILED_PRECONDITION for a request id that cannot be executed or replayed. */
export function requestIdError(reason: RequestIdReason): ApiError {
  const [message, next] = requestIdTexts[reason];
  return failedPrecondition(message, { next, reason });
}

/** Reads the details of an error received from (or about to be sent by) a server. Undecodable and unknown details are skipped. */
export function readErrorDetails(error: ConnectError): ErrorDetails {
  return gatherDetails((schema) => error.findDetails(schema));
}

import { create } from "@bufbuild/protobuf";
import { type Failure, FailureSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { escapeUntrusted, RuntimeError } from "@openshell/base";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import { MAX_FAILURE_TEXT, OLDEST_PROTOCOL_REVISION, PROTOCOL_REVISION } from "./limits.ts";

/** A failure as the protocol carries it. */
export function failure(
  code: RuntimeErrorCode,
  message: string,
  options: { next?: string; retryable?: boolean } = {},
): Failure {
  return create(FailureSchema, {
    code,
    message: message.slice(0, MAX_FAILURE_TEXT),
    next: options.next ?? "",
    retryable: options.retryable ?? false,
  });
}

/** What a peer said went wrong, as one line that is safe to store and to show. */
export function failureText(value: Failure | undefined): string {
  if (value === undefined) return "no reason was given";
  const text = value.message === "" ? value.code : value.message;
  return escapeUntrusted(value.next === "" ? text : `${text}. ${value.next}`, MAX_FAILURE_TEXT);
}

/** Why a peer of this revision of the protocol is not served. */
export function revisionText(theirs: number): string {
  return `this gateway speaks revisions ${OLDEST_PROTOCOL_REVISION} to ${PROTOCOL_REVISION} of the supervisor protocol, not ${theirs}`;
}

/** A session that must not go on; the peer is told by SessionRejected. */
export class SessionRefused extends RuntimeError {
  readonly failure: Failure;

  constructor(code: RuntimeErrorCode, message: string, options: { next?: string; retryable?: boolean } = {}) {
    super(code, message, options.next === undefined ? {} : { next: options.next });
    this.failure = failure(code, message, options);
  }
}

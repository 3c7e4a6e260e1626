import { RuntimeError } from "@openshell/base";
import type { RequestDenied } from "@openshell/policy/decision.ts";
import { connectionBody, type ErrorBody, requestBody } from "./denial.ts";
import type { DenialCode } from "./denial-code.ts";
import type { DecidingEngine } from "./events.ts";
import { type Authority, formatAuthority } from "./host-name.ts";
import { HttpParseError, type RequestHead } from "./http1/head.ts";
import type { Refusal } from "./target.ts";

/** Answers to requests that are given here and not upstream: what the client gets and what the log says, in one place. */
export interface Answer {
  readonly status: number;
  readonly body: ErrorBody;
  readonly engine: DecidingEngine;
  readonly code: DenialCode;
  readonly reason: string;
  readonly next: string;
  readonly policy: string;
  /** The connection may go on: only where the message framing is in no doubt. */
  readonly keep: boolean;
}

/** A request that cannot be understood or does not belong here. */
export function invalid(code: DenialCode, reason: string, next: string, policy = ""): Answer {
  const body = { error: code, detail: reason, next };
  return { status: 400, engine: "http-parser", code, reason, next, policy, keep: false, body };
}

/** Anything but a broken rule of the target is thrown on. */
export function invalidTarget(error: unknown): Answer {
  if (!(error instanceof HttpParseError)) throw error;
  if (error.rule === "target_scheme") {
    return invalid("unsupported_proxy_scheme", error.message, "Only http:// can be requested through the proxy.");
  }
  const next = "Send a path that starts with / and is encoded as RFC 3986 says.";
  return invalid("invalid_request_target", `request-target must be canonical: ${error.message}`, next);
}

/** The destination of one request was refused. `path` is redacted. */
export function refused(refusal: Refusal, method: string, destination: Authority, path: string): Answer {
  const { status, engine, code, reason, next, policy } = refusal;
  const body = connectionBody(refusal, `${method} ${formatAuthority(destination)}${path}`);
  return { status, engine, code, reason, next, policy, keep: true, body };
}

/** The rules of the endpoint refused the request. `path` is redacted. */
export function notPermitted(
  decision: RequestDenied,
  request: { readonly method: string; readonly path: string; readonly binary: string | undefined },
  destination: Authority,
): Answer {
  const { reason, next, policy } = decision;
  const body = requestBody({ ...request, ...destination, policy, reason, next });
  return { status: 403, engine: "l7", code: "policy_denied", reason, next, policy, keep: true, body };
}

/** The owner of the connection cannot be found any more. */
export function unidentified(reason: string, method: string, destination: Authority): Answer {
  const next = "Retry; if it persists, check that the program still runs and can be read.";
  const detail = `${method} ${formatAuthority(destination)} not permitted by policy`;
  const body = { error: "policy_denied", detail, reason, next };
  return { status: 403, engine: "identity", code: "policy_denied", reason, next, policy: "", keep: false, body };
}

/** The request names another host than its connection. */
export function authorityMismatch(expected: Authority, policy: string): Answer {
  const code = "request_authority_mismatch";
  const reason = `The request names another host than its connection to ${formatAuthority(expected)}`;
  const next = "Open a connection to the host that the request is for.";
  return {
    status: 403,
    engine: "l7",
    code,
    reason,
    next,
    policy,
    keep: false,
    body: { error: code, message: reason, next },
  };
}

/** A credential cannot be put in, or must not. */
export function credentialRefused(
  status: number,
  code: DenialCode,
  reason: string,
  next: string,
  policy: string,
  keep = true,
): Answer {
  return {
    status,
    engine: "credential",
    code,
    reason,
    next,
    policy,
    keep,
    body: { error: code, message: reason, next },
  };
}

/** TRACE makes a server send the request head back, the credential in it. */
export function traceRefused(policy: string): Answer {
  const reason = "TRACE would send the credential back";
  const next = "Use another method with this credential.";
  const body = { error: "policy_denied", detail: reason, next };
  return { status: 403, engine: "credential", code: "policy_denied", reason, next, policy, keep: true, body };
}

/** Nothing usable came from upstream. */
export function unreachable(error: unknown, destination: Authority, policy: string): Answer {
  const where = formatAuthority(destination);
  const known = error instanceof RuntimeError ? error : undefined;
  const reason =
    known === undefined
      ? `${where} answered with something that is not valid HTTP/1.1`
      : known.code === "idle_limit"
        ? `${where} did not answer in time`
        : known.message;
  const code = known?.code === "response_uninspectable" ? known.code : "upstream_unreachable";
  const next = known?.next ?? "";
  const body = { error: code, detail: reason, next };
  return { status: 502, engine: "upstream", code, reason, next, policy, keep: true, body };
}

/** Switching protocols would end inspection, so nothing is passed on that asks for it. */
export function upgradeRefused(head: RequestHead, destination: Authority, policy: string): Answer | undefined {
  const h2c = head.fields.has("http2-settings");
  const wanted = head.connection.includes("upgrade") ? (head.fields.get("upgrade") ?? "").toLowerCase() : "";
  if (wanted === "" && !h2c) return undefined;
  const reason = wanted.includes("websocket")
    ? "WebSocket is not supported for inspected endpoints"
    : "HTTP/2 cleartext upgrade (h2c) is not supported for L7-inspected endpoints";
  const next = `Use plain HTTP/1.1 requests, or tls: skip on an endpoint for ${formatAuthority(destination)} without inspection.`;
  const code = "unsupported_l7_protocol";
  return {
    status: 403,
    engine: "l7",
    code,
    reason,
    next,
    policy,
    keep: true,
    body: { error: code, detail: reason, next },
  };
}

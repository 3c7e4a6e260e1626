import type { Refusal } from "./target.ts";

/** Answers that the egress path gives itself: the reference's bodies, plus `next`, what to do about it. */

const REASONS: Readonly<Record<number, string>> = {
  400: "Bad Request",
  403: "Forbidden",
  408: "Request Timeout",
  431: "Request Header Fields Too Large",
  500: "Internal Server Error",
  502: "Bad Gateway",
  503: "Service Unavailable",
  504: "Gateway Timeout",
};

export interface ErrorBody {
  readonly error: string;
  readonly [key: string]: unknown;
}

/** A whole response as latin1-safe bytes. `keep` leaves the connection open for the next request. */
export function formatError(
  status: number,
  body: ErrorBody,
  options: {
    readonly keep?: boolean;
    readonly policy?: string;
    readonly head?: boolean;
    /** Said in the status line too, for clients that show nothing else of an answer to CONNECT. */
    readonly phrase?: string;
  } = {},
): Buffer {
  const text = Buffer.from(`${JSON.stringify(body)}\n`);
  const policy =
    options.policy !== undefined && /^[\x21-\x7e][\x20-\x7e]*$/.test(options.policy) ? options.policy : undefined;
  const head =
    `HTTP/1.1 ${status} ${REASONS[status] ?? "Error"}${phraseOf(options.phrase)}\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n` +
    (policy === undefined ? "" : `X-OpenShell-Policy: ${policy}\r\n`) +
    `${options.keep ? "" : "Connection: close\r\n"}\r\n`;
  // The answer to HEAD has the length of what GET would get, and no body (RFC 9110 §9.3.2).
  return options.head ? Buffer.from(head, "latin1") : Buffer.concat([Buffer.from(head, "latin1"), text]);
}

/** Longest text put into a status line; clients cut or refuse long ones. */
const PHRASE_LENGTH = 200;

/** A reason phrase is visible ASCII and spaces (RFC 9112 §4); what the agent chose must not add a line. */
function phraseOf(text: string | undefined): string {
  return text === undefined || text === "" ? "" : `: ${text.replace(/[^\x20-\x7e]/g, "?").slice(0, PHRASE_LENGTH)}`;
}

/** A connection was refused: `what` is `CONNECT h:p` or `GET h:p/path`. */
export function connectionBody(refusal: Refusal, what: string): ErrorBody {
  const { code, reason, next } = refusal;
  switch (code) {
    case "policy_denied":
      return { error: code, detail: `${what} not permitted by policy`, ...(reason === "" ? {} : { reason }), next };
    case "ssrf_denied":
      return { error: code, detail: `${what} blocked: ${refusal.kind}`, reason, next };
    default:
      return { error: code, detail: reason, next };
  }
}

export interface RequestDenial {
  readonly method: string;
  /** Redacted, without query. */
  readonly path: string;
  readonly host: string;
  readonly port: number;
  readonly binary: string | undefined;
  readonly policy: string;
  readonly reason: string;
  readonly next: string;
}

/** A request was refused by the rules of its endpoint. */
export function requestBody(denial: RequestDenial): ErrorBody {
  const { method, path, host, port, policy, reason, next } = denial;
  const binary = denial.binary === undefined ? {} : { binary: denial.binary };
  return {
    error: "policy_denied",
    policy,
    rule: `${method} ${path}`,
    detail: reason,
    layer: "l7",
    protocol: "rest",
    method,
    path,
    host,
    port,
    ...binary,
    rule_missing: { type: "rest_allow", layer: "l7", method, path, host, port, ...binary },
    next_steps: [],
    next,
  };
}

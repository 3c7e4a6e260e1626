/** gRPC status codes (https://grpc.github.io/grpc/core/md_doc_statuscodes.html); the same numbers as Connect's `Code`. */
export const StatusCode = {
  ok: 0,
  canceled: 1,
  unknown: 2,
  invalidArgument: 3,
  deadlineExceeded: 4,
  notFound: 5,
  alreadyExists: 6,
  permissionDenied: 7,
  resourceExhausted: 8,
  failedPrecondition: 9,
  aborted: 10,
  outOfRange: 11,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
  dataLoss: 15,
  unauthenticated: 16,
} as const;

/** Header fields as node:http2 gives and takes them: lower-case names, repeated fields joined or listed. */
export type Fields = Readonly<Record<string, string | string[] | number | undefined>>;

/** A call that did not end with OK, at the level of the wire. */
export class StatusError extends Error {
  /** One of {@link StatusCode}. */
  readonly code: number;
  /** An encoded google.rpc.Status, as `grpc-status-details-bin` carried it. */
  readonly details: Uint8Array | undefined;
  /** Headers and trailers, where the other side sent the status; undefined where this side found the failure. */
  readonly trailer: Fields | undefined;

  constructor(
    code: number,
    message: string,
    options: { readonly details?: Uint8Array; readonly trailer?: Fields; readonly cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "StatusError";
    this.code = code;
    this.details = options.details;
    this.trailer = options.trailer;
  }
}

/**
 * Bytes that `grpc-message` carries as they are: printable ASCII without the percent sign (PROTOCOL-HTTP2.md, Responses), and
 * no space at either end, since receivers drop fields with one (RFC 9113 §8.2.1).
 */
const PLAIN = /^(?! )[\x20-\x24\x26-\x7e]*$(?<! )/;

/** Percent-encodes a status message. */
export function encodeStatusMessage(text: string): string {
  if (PLAIN.test(text)) return text;
  let encoded = "";
  for (const byte of Buffer.from(text, "utf8")) {
    const plain = byte >= 0x20 && byte <= 0x7e && byte !== 0x25;
    encoded += plain ? String.fromCharCode(byte) : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return encoded.replace(/^ | $/g, "%20");
}

/** Reads a status message; what is no valid escape stays as it is, since a message must never be lost. */
export function decodeStatusMessage(text: string): string {
  if (!text.includes("%")) return text;
  const bytes = text.replace(/%([0-9A-Fa-f]{2})/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
  return Buffer.from(bytes, "latin1").toString("utf8");
}

/** The status in trailers; undefined for OK. `headers` become part of the error. @throws StatusError when there is none, or no valid one. */
export function readStatus(fields: Fields, headers: Fields = {}): StatusError | undefined {
  const text = fields["grpc-status"];
  if (text === undefined) throw new StatusError(StatusCode.internal, "the call ended without a grpc-status");
  const code = /^\d{1,2}$/.test(String(text)) ? Number(text) : -1;
  if (code === StatusCode.ok) return undefined;
  if (code < 0 || code > StatusCode.unauthenticated) {
    throw new StatusError(StatusCode.unknown, `the call ended with grpc-status ${JSON.stringify(text)}, which is none`);
  }
  const packed = fields["grpc-status-details-bin"];
  return new StatusError(code, decodeStatusMessage(String(fields["grpc-message"] ?? "")), {
    trailer: { ...headers, ...fields },
    ...(typeof packed === "string" ? { details: Buffer.from(packed, "base64") } : {}),
  });
}

const HTTP_CODES: Readonly<Record<number, number>> = {
  400: StatusCode.internal,
  401: StatusCode.unauthenticated,
  403: StatusCode.permissionDenied,
  404: StatusCode.unimplemented,
};

/** The code for an answer that is no gRPC (https://grpc.github.io/grpc/core/md_doc_http-grpc-status-mapping.html). */
export function codeFromHttpStatus(status: number): number {
  if (status === 429 || (status >= 502 && status <= 504)) return StatusCode.unavailable;
  return HTTP_CODES[status] ?? StatusCode.unknown;
}

const RESET_CODES: Readonly<Record<number, number>> = {
  7: StatusCode.unavailable, // REFUSED_STREAM: not processed
  8: StatusCode.canceled, // CANCEL
  11: StatusCode.resourceExhausted, // ENHANCE_YOUR_CALM
  12: StatusCode.permissionDenied, // INADEQUATE_SECURITY
};

/** The code for a stream that was reset (PROTOCOL-HTTP2.md, Errors). */
export function codeFromReset(code: number): number {
  return RESET_CODES[code] ?? StatusCode.internal;
}

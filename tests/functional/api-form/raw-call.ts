import { once } from "node:events";
import { type ClientHttp2Session, constants, type IncomingHttpHeaders } from "node:http2";
import { fromBinary } from "@bufbuild/protobuf";
import { anyUnpack } from "@bufbuild/protobuf/wkt";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  ResourceInfoSchema,
  RetryInfoSchema,
} from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";

/** One gRPC call as bytes on HTTP/2, without any RPC library: what is really sent is what is looked at. */

const KNOWN_DETAILS = [ErrorInfoSchema, BadRequestSchema, RetryInfoSchema, ResourceInfoSchema];
const CALL_LIMIT_MS = 10_000;

export interface RawAnswer {
  readonly httpStatus: number;
  readonly contentType: string | undefined;
  /** `grpc-status`; undefined when the server sent none. */
  readonly code: number | undefined;
  /** `grpc-message`, decoded. */
  readonly message: string;
  /** Bytes of the trailers as HTTP/2 counts them: name, value and 32 each. */
  readonly trailerBytes: number;
  /** The envelope, when there is one. */
  readonly envelope:
    | { readonly code: number; readonly message: string; readonly details: readonly unknown[] }
    | undefined;
  readonly reason: string | undefined;
  readonly domain: string | undefined;
  readonly fields: readonly string[];
  readonly data: Buffer;
}

/** A length-prefixed message. */
export function frame(message: Uint8Array, compressed = false): Buffer {
  const head = Buffer.alloc(5);
  head[0] = compressed ? 1 : 0;
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

/** Sends `body` and half-closes. Waits for the end of the call. */
export async function rawCall(
  session: ClientHttp2Session,
  path: string,
  body: Uint8Array,
  headers: Readonly<Record<string, string>> = {},
): Promise<RawAnswer> {
  const stream = session.request({
    [constants.HTTP2_HEADER_METHOD]: "POST",
    [constants.HTTP2_HEADER_PATH]: path,
    "content-type": "application/grpc",
    te: "trailers",
    ...headers,
  });
  const timer = setTimeout(() => stream.close(constants.NGHTTP2_CANCEL), CALL_LIMIT_MS);
  let trailers: IncomingHttpHeaders = {};
  stream.on("trailers", (received) => {
    trailers = received;
  });
  const chunks: Buffer[] = [];
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  stream.end(body);
  try {
    const [response] = (await once(stream, "response")) as [IncomingHttpHeaders];
    if (!stream.closed) await once(stream, "close");
    return answerOf(response, trailers, Buffer.concat(chunks));
  } finally {
    clearTimeout(timer);
  }
}

function answerOf(response: IncomingHttpHeaders, trailers: IncomingHttpHeaders, data: Buffer): RawAnswer {
  // An answer without messages has its status among the response headers.
  const status = trailers["grpc-status"] === undefined ? response : trailers;
  const text = (name: string): string | undefined => status[name] as string | undefined;
  const bytes = text("grpc-status-details-bin");
  const envelope = bytes === undefined ? undefined : fromBinary(StatusSchema, Buffer.from(bytes, "base64"));
  const details = (envelope?.details ?? []).map((any) => {
    const known = KNOWN_DETAILS.find(({ typeName }) => any.typeUrl === `type.googleapis.com/${typeName}`);
    if (known === undefined) throw new Error(`unknown detail ${any.typeUrl}`);
    return anyUnpack(any, known)!;
  });
  const info = details.find((detail) => detail.$typeName === "google.rpc.ErrorInfo");
  const bad = details.find((detail) => detail.$typeName === "google.rpc.BadRequest");
  const code = text("grpc-status");
  return {
    httpStatus: Number(response[":status"]),
    contentType: response["content-type"],
    code: code === undefined ? undefined : Number(code),
    message: decodeURIComponent(text("grpc-message") ?? ""),
    trailerBytes: Object.entries(status).reduce(
      (sum, [name, value]) => sum + name.length + String(value).length + 32,
      0,
    ),
    envelope: envelope === undefined ? undefined : { code: envelope.code, message: envelope.message, details },
    reason: info?.reason,
    domain: info?.domain,
    fields: bad?.fieldViolations.map(({ field }) => field) ?? [],
    data,
  };
}

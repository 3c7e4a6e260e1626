import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { WireLimits } from "./wire/limits.ts";
import { addMetadata, toHeaders } from "./wire/metadata.ts";
import { encodeStatusMessage, StatusError } from "./wire/status.ts";

/** What a caller is told of anything that a handler threw. */
export function toConnectError(error: unknown): ConnectError {
  if (error instanceof ConnectError) return error;
  if (error instanceof StatusError) {
    return new ConnectError(error.message, error.code as Code, undefined, undefined, error);
  }
  // Its text is not for strangers.
  return new ConnectError("internal error", Code.Internal, undefined, undefined, error);
}

/**
 * Trailers of a failed call. Code and message are written to the transport's own fields and to `grpc-status-details-bin`
 * from the same values: the Python SDK ignores details whose envelope differs from the status.
 */
export function errorTrailers(error: ConnectError): Record<string, string> {
  const text = error.rawMessage;
  const message = text.length > WireLimits.statusMessage ? `${text.slice(0, WireLimits.statusMessage - 1)}…` : text;
  const trailers: Record<string, string> = {};
  addMetadata(trailers, error.metadata);
  trailers["grpc-status"] = String(error.code);
  trailers["grpc-message"] = encodeStatusMessage(message);
  if (error.details.length === 0) return trailers;
  const details = error.details.map((detail) =>
    "desc" in detail
      ? anyPack(detail.desc, create(detail.desc, detail.value))
      : { typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value },
  );
  const status = toBinary(StatusSchema, create(StatusSchema, { code: error.code, message, details }));
  const packed = Buffer.from(status).toString("base64").replace(/=+$/, "");
  if (packed.length <= WireLimits.statusDetails) trailers["grpc-status-details-bin"] = packed;
  return trailers;
}

/** A status that came over the wire, or a failure of the wire itself, as Connect's clients expect it. */
export function fromWire(error: unknown): ConnectError {
  if (!(error instanceof StatusError)) return ConnectError.from(error);
  const metadata = error.trailer === undefined ? undefined : toHeaders(error.trailer);
  const result = new ConnectError(error.message, error.code as Code, metadata, undefined, error.cause);
  result.details = unpackDetails(error);
  return result;
}

/** Details count only where their envelope repeats the status: anything else was written by somebody in between. */
function unpackDetails({ details, code, message }: StatusError): ConnectError["details"] {
  if (details === undefined) return [];
  try {
    const status = fromBinary(StatusSchema, details);
    if (status.code !== code || status.message !== message) return [];
    return status.details.map(({ typeUrl, value }) => ({ type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1), value }));
  } catch {
    return [];
  }
}

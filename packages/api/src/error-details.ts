import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { type Any, anyUnpack } from "@bufbuild/protobuf/wkt";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  ResourceInfoSchema,
  RetryInfoSchema,
} from "./generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "./generated/google/rpc/status_pb.js";
import type { FieldViolation } from "./violations.ts";

/** The error details of a failed call, as clients read them. */
export interface ErrorDetails {
  /** Stable word for the cause; undefined when the server gave none. */
  readonly reason: string | undefined;
  /** Who defines the reason. */
  readonly domain: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly FieldViolation[];
  /** Least wait before a retry, in milliseconds. */
  readonly retryDelayMs: number | undefined;
  readonly resource: { readonly kind: string; readonly name: string } | undefined;
}

/** Finds all details of one kind. */
export type FindDetails = <Desc extends DescMessage>(schema: Desc) => readonly MessageShape<Desc>[];

/** Gathers the details that this API uses; others are ignored. */
export function gatherDetails(find: FindDetails): ErrorDetails {
  const info = find(ErrorInfoSchema)[0];
  const retry = find(RetryInfoSchema)[0]?.retryDelay;
  const resource = find(ResourceInfoSchema)[0];
  return {
    reason: info?.reason,
    domain: info?.domain,
    metadata: info?.metadata ?? {},
    violations: find(BadRequestSchema).flatMap((request) =>
      request.fieldViolations.map(({ field, description }) => ({ field, description })),
    ),
    retryDelayMs: retry === undefined ? undefined : Number(retry.seconds) * 1000 + Math.trunc(retry.nanos / 1e6),
    resource: resource === undefined ? undefined : { kind: resource.resourceType, name: resource.resourceName },
  };
}

/**
 * Reads the trailer `grpc-status-details-bin` (decoded from base64) for clients that do without Connect. An envelope that does not repeat the
 * transport's own code and message is not of this error and gives undefined, as does an undecodable one; undecodable details are skipped.
 */
export function readStatusEnvelope(bytes: Uint8Array, code: number, message: string): ErrorDetails | undefined {
  const status = tryDecode(() => fromBinary(StatusSchema, bytes));
  if (status === undefined || status.code !== code || status.message !== message) return undefined;
  const unpack = <Desc extends DescMessage>(detail: Any, schema: Desc) => tryDecode(() => anyUnpack(detail, schema));
  return gatherDetails((schema) =>
    status.details.flatMap((detail) => {
      const message = unpack(detail, schema);
      return message === undefined ? [] : [message];
    }),
  );
}

function tryDecode<T>(decode: () => T | undefined): T | undefined {
  try {
    return decode();
  } catch {
    return undefined;
  }
}

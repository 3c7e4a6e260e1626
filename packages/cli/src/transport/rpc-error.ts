import { CALL_CODES, type CallCode } from "@openshell/base/catalogue/calls.ts";
import { ProtoReader } from "./proto-wire.ts";

/** Status codes as the Connect protocol names them (gRPC's, in lower snake case). */
export type RpcCode = CallCode;

/** By gRPC number, from 1. */
const CODES = Object.keys(CALL_CODES) as readonly RpcCode[];

export function codeFromNumber(number: number): RpcCode {
  return CODES[number - 1] ?? "unknown";
}

export function codeFromName(name: unknown): RpcCode {
  return CODES.includes(name as RpcCode) ? (name as RpcCode) : "unknown";
}

export interface RpcViolation {
  readonly field: string;
  readonly description: string;
}

/** A call that the gateway refused, or that did not reach it. */
export class RpcError extends Error {
  readonly code: RpcCode;
  /** `ErrorInfo.reason`, empty when there is none. */
  readonly reason: string;
  readonly violations: readonly RpcViolation[];
  /** `ResourceInfo` of the error: what it is about. */
  readonly resource: RpcResource | undefined;

  constructor(code: RpcCode, message: string, details: ErrorDetails = NO_DETAILS, cause?: unknown) {
    super(message === "" ? code.replaceAll("_", " ") : message, cause === undefined ? undefined : { cause });
    this.name = "RpcError";
    this.code = code;
    this.reason = details.reason;
    this.violations = details.violations;
    this.resource = details.resource;
  }

  /** By name: the bundles of the command line each have a copy of this class. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof Error && (value.name === "RpcError" || value.name === "UnreachableError");
  }
}

export interface RpcResource {
  readonly kind: string;
  readonly name: string;
}

export interface ErrorDetails {
  readonly reason: string;
  readonly violations: readonly RpcViolation[];
  readonly resource?: RpcResource | undefined;
}

export const NO_DETAILS: ErrorDetails = { reason: "", violations: [] };

/** A google.protobuf.Any: type name without its prefix, and bytes. */
export interface PackedDetail {
  readonly type: string;
  readonly value: Uint8Array;
}

/** Reads the details that are shown: ErrorInfo, BadRequest and ResourceInfo of google.rpc. Undecodable ones are skipped. */
export function readDetails(packed: readonly PackedDetail[]): ErrorDetails {
  let reason = "";
  const violations: RpcViolation[] = [];
  let resource: RpcResource | undefined;
  for (const { type, value } of packed) {
    try {
      if (type === "google.rpc.ErrorInfo") reason = stringField(value, 1);
      if (type === "google.rpc.ResourceInfo") resource = { kind: stringField(value, 1), name: stringField(value, 2) };
      if (type === "google.rpc.BadRequest") {
        for (const { field, data } of new ProtoReader(value)) {
          if (field !== 1 || !(data instanceof Uint8Array)) continue;
          violations.push({ field: stringField(data, 1), description: stringField(data, 2) });
        }
      }
    } catch {
      // A detail that cannot be read is worth less than the error itself.
    }
  }
  return { reason, violations, resource };
}

/** Unpacks `google.rpc.Status` (the trailer `grpc-status-details-bin`). */
export function readStatusDetails(status: Uint8Array): ErrorDetails {
  const packed: PackedDetail[] = [];
  try {
    for (const { field, data } of new ProtoReader(status)) {
      if (field !== 3 || !(data instanceof Uint8Array)) continue;
      const value = bytesField(data, 2);
      packed.push({ type: stringField(data, 1).replace(/^.*\//, ""), value });
    }
  } catch {
    return NO_DETAILS;
  }
  return readDetails(packed);
}

function bytesField(message: Uint8Array, number: number): Uint8Array {
  let found: Uint8Array = new Uint8Array();
  for (const { field, data } of new ProtoReader(message)) {
    if (field === number && data instanceof Uint8Array) found = data;
  }
  return found;
}

function stringField(message: Uint8Array, number: number): string {
  return Buffer.from(bytesField(message, number)).toString("utf8");
}

import { durationMs } from "@bufbuild/protobuf/wkt";
import { type Manifest, Operation, Phase } from "@openshell/api/generated/middleware_pb.js";
import { MiddlewareLimit } from "./limits.ts";
import type { Service } from "./service.ts";

export type MiddlewareOperation = "http_request" | "websocket_message";

/** What a service takes part in. */
export interface Binding {
  readonly operation: MiddlewareOperation;
  /** What it is sent at most: the operator's limit. Bytes. */
  readonly maxPayloadBytes: number;
  /** Milliseconds. */
  readonly timeoutMs: number;
}

const OPERATIONS: Partial<Record<Operation, MiddlewareOperation>> = {
  [Operation.HTTP_REQUEST]: "http_request",
  [Operation.WEBSOCKET_MESSAGE]: "websocket_message",
};

/** Why a manifest cannot be used, in words that repeat nothing of it; else its bindings under the operator's limits. */
export function checkManifest(manifest: Manifest, service: Service): readonly Binding[] | string {
  const { name, serviceVersion, expectedAudience, bindings } = manifest;
  if ([name, serviceVersion, expectedAudience].some((text) => text.length > MiddlewareLimit.text))
    return `its name, version or audience has more than ${MiddlewareLimit.text} characters`;
  if (expectedAudience !== "" && expectedAudience !== service.audience)
    return `it expects another audience than '${service.audience}'`;
  if (bindings.length === 0) return "it lists no binding";
  if (bindings.length > MiddlewareLimit.bindings) return `it lists more than ${MiddlewareLimit.bindings} bindings`;
  const found = new Map<MiddlewareOperation, Binding>();
  for (const { operation, phase, maxPayloadBytes, timeout } of bindings) {
    const known = OPERATIONS[operation];
    if (known === undefined) return `operation ${operation} of a binding is unknown`;
    if (phase !== Phase.PRE_CREDENTIALS) return `phase ${phase} of ${known} is not supported`;
    if (found.has(known)) return `it lists ${known} twice`;
    if (maxPayloadBytes < 1n || maxPayloadBytes > BigInt(MiddlewareLimit.payloadBytes))
      return `max_payload_bytes of ${known} is not within 1 to ${MiddlewareLimit.payloadBytes}`;
    if (maxPayloadBytes < BigInt(service.maxPayloadBytes))
      return `${known} takes ${maxPayloadBytes} bytes, fewer than the ${service.maxPayloadBytes} that are registered`;
    const limit = timeout === undefined ? service.timeoutMs : durationMs(timeout);
    if (limit < MiddlewareLimit.timeoutMinimumMs || limit > MiddlewareLimit.timeoutMaximumMs)
      return `the timeout of ${known} is not within 10 ms to 30 s`;
    found.set(known, {
      operation: known,
      maxPayloadBytes: service.maxPayloadBytes,
      timeoutMs: Math.min(limit, service.timeoutMs),
    });
  }
  return [...found.values()];
}

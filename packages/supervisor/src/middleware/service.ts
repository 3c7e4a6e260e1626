import { durationMs } from "@bufbuild/protobuf/wkt";
import type { MiddlewareService } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { MiddlewareLimit } from "./limits.ts";

/** One registered service, checked: how it is reached and what it may cost. */
export interface Service {
  readonly name: string;
  readonly endpoint: { readonly host: string; readonly port: number; readonly secure: boolean };
  /** The only roots that its certificate may come from; empty: those of the machine. */
  readonly caPem: string;
  readonly maxPayloadBytes: number;
  readonly timeoutMs: number;
  readonly audience: string;
  /** Two services with the same key are reached in the same way. */
  readonly key: string;
}

/**
 * Registrations come from the gateway, which checked them. What contradicts itself all the same is refused: undefined.
 */
export function serviceOf(message: MiddlewareService): Service | undefined {
  const { name, caPem, maxPayloadBytes, audience } = message;
  const endpoint = endpointOf(message.endpoint, message.allowInsecureTransport);
  const timeoutMs = message.timeout === undefined ? MiddlewareLimit.timeoutMs : durationMs(message.timeout);
  const bounded =
    maxPayloadBytes >= 1 &&
    maxPayloadBytes <= MiddlewareLimit.payloadBytes &&
    timeoutMs >= MiddlewareLimit.timeoutMinimumMs &&
    timeoutMs <= MiddlewareLimit.timeoutMaximumMs;
  if (endpoint === undefined || name === "" || !bounded) return undefined;
  const facts = { name, endpoint, caPem, maxPayloadBytes, timeoutMs, audience };
  return { ...facts, key: JSON.stringify(facts) };
}

function endpointOf(text: string, allowInsecure: boolean): Service["endpoint"] | undefined {
  const url = URL.parse(text);
  if (url === null || (url.protocol !== "https:" && url.protocol !== "http:")) return undefined;
  const secure = url.protocol === "https:";
  if ((!secure && !allowInsecure) || url.username !== "" || url.password !== "") return undefined;
  return { host: url.hostname.replace(/^\[|\]$/g, ""), port: Number(url.port) || (secure ? 443 : 80), secure };
}

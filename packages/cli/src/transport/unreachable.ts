import { systemCode } from "@openshell/base/errors.ts";
import { describeEndpoint, type Endpoint } from "./endpoint.ts";
import { RpcError } from "./rpc-error.ts";

/** The connection never stood: nothing of the call reached the gateway. */
export class UnreachableError extends RpcError {
  override readonly name = "UnreachableError";

  static override [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof Error && value.name === "UnreachableError";
  }
}

const NOT_CONNECTED: ReadonlySet<string> = new Set([
  "ENOENT",
  "ECONNREFUSED",
  "EACCES",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "ETIMEDOUT",
  "EADDRNOTAVAIL",
]);

/** A failure of node:http, node:http2, node:net or node:tls as an RpcError. */
export function connectionError(error: unknown, endpoint: Endpoint): RpcError {
  if (error instanceof RpcError) return error;
  const place = describeEndpoint(endpoint);
  const code = systemCode(error) ?? "";
  const text = error instanceof Error ? error.message : String(error);
  if (NOT_CONNECTED.has(code)) {
    return new UnreachableError("unavailable", `no gateway answers at ${place} (${code})`, undefined, error);
  }
  if (/^(ERR_TLS|ERR_SSL|CERT_|DEPTH_|SELF_SIGNED|UNABLE_TO|ERR_OSSL)/.test(code)) {
    return new UnreachableError("unauthenticated", `TLS with ${place} failed: ${text}`, undefined, error);
  }
  return new RpcError(
    "unavailable",
    `the connection to the gateway at ${place} was lost (${code || text})`,
    undefined,
    error,
  );
}

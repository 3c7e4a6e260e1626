import type { ClientRequest, IncomingMessage } from "node:http";
import { type Endpoint, SERVICE_PATH, tlsOptions } from "./endpoint.ts";
import { CALL_TIMEOUT_MS, MAX_RESPONSE_BYTES } from "./limits.ts";
import { codeFromName, type PackedDetail, RpcError, readDetails } from "./rpc-error.ts";
import { connectionError } from "./unreachable.ts";

/** JSON as the Connect protocol carries it (ProtoJSON). */
export type Json = Readonly<Record<string, unknown>>;

export interface CallOptions {
  readonly signal?: AbortSignal;
  readonly timeoutMs?: number;
  /** Metadata of the request beside those of the protocol. */
  readonly metadata?: Readonly<Record<string, string>>;
  /** Called once the request is on its way: what happens then costs the answer no time. */
  readonly onSent?: () => void;
}

/**
 * One unary call in the Connect protocol (https://connectrpc.com/docs/protocol): a POST with JSON either way. Node's
 * modules are asked for by `getBuiltinModule`: importing them costs several times as much, because every one of their
 * exports is evaluated then.
 *
 * Throws {@link RpcError}.
 */
export async function callUnary(
  endpoint: Endpoint,
  method: string,
  message: Json,
  options: CallOptions = {},
): Promise<Json> {
  const timeoutMs = options.timeoutMs ?? CALL_TIMEOUT_MS;
  const body = JSON.stringify(message);
  const request = openRequest(endpoint, method, {
    ...options.metadata,
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
    "connect-protocol-version": "1",
    "connect-timeout-ms": timeoutMs,
  });
  const abort = (): void => void request.destroy(new RpcError("canceled", "interrupted"));
  if (options.signal?.aborted) abort();
  options.signal?.addEventListener("abort", abort, { once: true });
  const timer = setTimeout(
    () => request.destroy(new RpcError("deadline_exceeded", `${method} was not answered within ${timeoutMs / 1000} s`)),
    timeoutMs,
  );
  try {
    if (options.onSent !== undefined) request.once("finish", options.onSent);
    request.end(body);
    const response = await responseOf(request, endpoint);
    const text = await readBody(response, MAX_RESPONSE_BYTES, endpoint);
    if (response.statusCode === 200) return parseObject(text);
    throw errorFromJson(text, response.statusCode ?? 0);
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", abort);
  }
}

/** Starts a request to a method of the service; the caller writes its body and ends it. */
export function openRequest(
  endpoint: Endpoint,
  method: string,
  headers: Readonly<Record<string, string | number>>,
): ClientRequest {
  const path = SERVICE_PATH + method;
  if (endpoint.kind === "unix") {
    const http = process.getBuiltinModule("node:http");
    return http.request({
      socketPath: endpoint.path,
      path,
      method: "POST",
      headers: { host: "localhost", ...headers },
    });
  }
  const { url, tls } = endpoint;
  const place = { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port, path, method: "POST", headers };
  if (url.protocol === "http:") return process.getBuiltinModule("node:http").request(place);
  return process.getBuiltinModule("node:https").request({ ...place, ...tlsOptions(tls) });
}

export function responseOf(request: ClientRequest, endpoint: Endpoint): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    request.once("response", resolve);
    request.once("error", (error) => reject(connectionError(error, endpoint)));
  });
}

async function readBody(response: IncomingMessage, limit: number, endpoint: Endpoint): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  try {
    for await (const chunk of response) {
      length += (chunk as Buffer).length;
      if (length > limit) throw new RpcError("resource_exhausted", `the answer exceeds ${limit} bytes`);
      chunks.push(chunk as Buffer);
    }
  } catch (error) {
    throw connectionError(error, endpoint);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function parseObject(text: string): Json {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Json;
  } catch {
    // Said below.
  }
  throw new RpcError("internal", "the answer is not JSON: this is no OpenShell gateway");
}

/** An error body of the Connect protocol: `{code, message, details: [{type, value}]}`. */
export function errorFromJson(text: string, status: number): RpcError {
  let body: Json;
  try {
    body = parseObject(text);
  } catch {
    return new RpcError(codeFromStatus(status), `HTTP status ${status}: this is no OpenShell gateway`);
  }
  return errorFromObject(body);
}

export function errorFromObject(body: Json): RpcError {
  const details = Array.isArray(body["details"]) ? (body["details"] as readonly Json[]) : [];
  const packed: PackedDetail[] = details.flatMap((detail) =>
    typeof detail["type"] === "string" && typeof detail["value"] === "string"
      ? [{ type: detail["type"], value: Buffer.from(detail["value"], "base64") }]
      : [],
  );
  const message = typeof body["message"] === "string" ? body["message"] : "";
  return new RpcError(codeFromName(body["code"]), message, readDetails(packed));
}

/** Of answers that came from something in between (https://connectrpc.com/docs/protocol#http-to-error-code). */
function codeFromStatus(status: number) {
  if (status === 401) return "unauthenticated";
  if (status === 403) return "permission_denied";
  if (status === 404) return "unimplemented";
  if (status === 429 || status === 502 || status === 503 || status === 504) return "unavailable";
  return "unknown";
}

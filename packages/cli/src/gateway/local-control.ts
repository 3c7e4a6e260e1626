import type { GatewayRecord } from "@openshell/base/gateway-record.ts";
import { CliError, type ErrorCode } from "../errors.ts";
import type { Endpoint } from "../transport/endpoint.ts";
import { responseOf } from "../transport/unary.ts";
import { connectionError } from "../transport/unreachable.ts";

/** A gateway's answers to its own uid on the users' socket. */
export interface LocalStatus {
  readonly record: GatewayRecord | undefined;
  readonly sandboxes: number;
  readonly hosts: number;
}

/** Milliseconds. */
const LIMIT_MS = 10_000;
/** A gateway that is to end its sandboxes answers when they have ended, for which it has 30 s. */
const STOP_SANDBOXES_LIMIT_MS = 40_000;
const MAX_BYTES = 64 * 1024;

/** `GET /local/status`. Throws RpcError when nobody answers. */
export async function localStatus(endpoint: Endpoint & { readonly kind: "unix" }): Promise<LocalStatus> {
  const { status, body } = await ask(endpoint, "GET", "/local/status");
  if (status !== 200) throw refusal(status, body);
  return body as unknown as LocalStatus;
}

/** `POST /local/stop`: resolves when the gateway has agreed to stop. Throws its refusal. */
export async function localStop(endpoint: Endpoint & { readonly kind: "unix" }, sandboxes: string): Promise<void> {
  const limitMs = sandboxes === "stop" ? STOP_SANDBOXES_LIMIT_MS : LIMIT_MS;
  const { status, body } = await ask(endpoint, "POST", `/local/stop?sandboxes=${sandboxes}`, limitMs);
  if (status !== 202) throw refusal(status, body);
}

function refusal(status: number, body: Readonly<Record<string, unknown>>): CliError {
  const message =
    typeof body["message"] === "string" ? body["message"] : `the gateway answered with HTTP status ${status}`;
  const code = (typeof body["code"] === "string" ? body["code"] : "internal") as ErrorCode;
  return new CliError(message, {
    code,
    next: typeof body["next"] === "string" ? body["next"] : "See the gateway's log",
  });
}

async function ask(
  endpoint: Endpoint & { readonly kind: "unix" },
  method: "GET" | "POST",
  path: string,
  limitMs = LIMIT_MS,
) {
  const { request } = process.getBuiltinModule("node:http");
  const call = request({
    socketPath: endpoint.path,
    method,
    path,
    headers: { host: "localhost", "content-length": 0 },
    timeout: limitMs,
  });
  call.once("timeout", () => call.destroy(new Error("no answer in time")));
  call.end();
  const response = await responseOf(call, endpoint);
  const chunks: Buffer[] = [];
  let length = 0;
  try {
    for await (const chunk of response) {
      length += (chunk as Buffer).length;
      if (length > MAX_BYTES) throw new Error("the answer is too long");
      chunks.push(chunk as Buffer);
    }
  } catch (error) {
    throw connectionError(error, endpoint);
  }
  return { status: response.statusCode ?? 0, body: parse(Buffer.concat(chunks).toString("utf8")) };
}

function parse(text: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return { message: text.trim() };
  }
}

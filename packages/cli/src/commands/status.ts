import type { CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { isolationSummary } from "../model/isolation.ts";
import { sandboxView } from "../model/sandbox.ts";
import { renderDetails } from "../output/table.ts";
import { cell } from "../output/terminal.ts";
import { describeEndpoint } from "../transport/endpoint.ts";
import { RpcError } from "../transport/rpc-error.ts";
import { callUnary, type Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["status"],
  summary: "show the gateway and how it is reached",
  flags: [OUTPUT_FLAG],
  about: ["Never starts a gateway. The exit status is 0 also when none answers; use -o json in programs."],
  examples: ["openshell status", "openshell status -o json"],
};

/** A gateway that does not answer a status within this is not there. */
const STATUS_TIMEOUT_MS = 5_000;

interface Status {
  readonly gateway: string;
  readonly server: string;
  readonly status: "connected" | "disconnected" | "error";
  readonly authentication: Json;
  readonly version?: string;
  readonly health?: string;
  readonly identity?: Json;
  /** What the isolation of the workspace's running sandboxes comes to. */
  readonly isolation?: string;
  readonly error?: string;
}

export async function run(context: Context): Promise<number> {
  const status = await look(context);
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured(status, format);
    return EXIT.ok;
  }
  const { out } = context;
  const paint = status.status === "connected" ? out.green : status.status === "error" ? out.red : out.yellow;
  const title = (text: string): string => text[0]!.toUpperCase() + text.slice(1).replaceAll("_", " ");
  const lines: [string, string][] = [
    ["Gateway", cell(status.gateway)],
    ["Server", cell(status.server)],
    ["Status", paint(title(status.status))],
    ["Authentication", title(String(status.authentication["status"]))],
  ];
  if (status.identity !== undefined) lines.push(["User", cell(status.identity["subject"])]);
  if (status.version !== undefined) lines.push(["Version", cell(status.version)]);
  if (status.health !== undefined) lines.push(["Health", cell(status.health)]);
  if (status.isolation !== undefined) lines.push(["Isolation", cell(status.isolation)]);
  if (status.error !== undefined) lines.push(["Error", cell(status.error)]);
  await context.print(renderDetails("Server Status", lines, out));
  return EXIT.ok;
}

async function look(context: Context): Promise<Status> {
  const { target } = context;
  const place = { gateway: target.name, server: describeEndpoint(target.endpoint) };
  const options = { timeoutMs: STATUS_TIMEOUT_MS };
  let health: Json;
  try {
    health = await callUnary(target.endpoint, "Health", {}, options);
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    const away = error.code === "unavailable" || error.code === "deadline_exceeded";
    const hint = target.kind === "embedded" && away ? "; any command that needs it starts it" : "";
    return {
      ...place,
      status: away ? "disconnected" : "error",
      authentication: { status: "unverified" },
      error: error.message + hint,
    };
  }
  const connected = {
    ...place,
    status: "connected",
    version: String(health["version"] ?? ""),
    health: String(health["status"] ?? "")
      .replace(/^SERVICE_STATUS_/, "")
      .toLowerCase(),
  } as const;
  try {
    const user = await callUnary(target.endpoint, "GetCurrentUser", {}, options);
    const identity = {
      subject: user["subject"],
      roles: user["roles"] ?? [],
      identity_provider: user["identityProvider"],
    };
    const isolation = await isolationOf(context, options);
    return {
      ...connected,
      authentication: { status: "authenticated", provider: user["identityProvider"] },
      identity,
      ...(isolation === undefined ? {} : { isolation }),
    };
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    if (error.code === "permission_denied") return { ...connected, authentication: { status: "authenticated" } };
    const failed = error.code === "unauthenticated" ? "failed" : "unverified";
    return { ...connected, authentication: { status: failed, error: error.message } };
  }
}

/** Sandboxes that are looked at. */
const ISOLATION_PAGE = 100;

/** Undefined where no sandbox runs, or where the caller may not list them: then there is nothing to say. */
async function isolationOf(context: Context, options: { readonly timeoutMs: number }): Promise<string | undefined> {
  const { endpoint } = context.target;
  const request = { workspaceScope: context.scope, pageSize: ISOLATION_PAGE };
  const answer = await callUnary(endpoint, "ListSandboxes", request, options).catch((error: unknown) => {
    if (error instanceof RpcError) return {} as Json;
    throw error;
  });
  const sandboxes = Array.isArray(answer["sandboxes"]) ? answer["sandboxes"].map(sandboxView) : [];
  return isolationSummary(
    sandboxes.flatMap(({ phase, isolation }) => (phase === "Ready" && isolation ? [isolation] : [])),
  );
}

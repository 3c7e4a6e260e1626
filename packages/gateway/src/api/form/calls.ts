import { create, type DescMethod, type MessageInitShape } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { OpenShell, type UpdateConfigRequestSchema } from "@openshell/api";
import { compatibility, type RpcName } from "@openshell/api/compatibility.ts";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { WorkspaceSelectorSchema } from "@openshell/api/generated/datamodel_pb.js";
import type { Harness } from "../testing/harness.ts";

/**
 * Calls of any RPC by its descriptor, so that tables of tests cover RPCs that do not exist yet. `SAMPLES` completes requests
 * whose handlers want more than names; an RPC that is new and needs an entry fails here until it has one.
 */

export const rpcNames = OpenShell.methods.map((method) => method.localName as RpcName);
export const methodOf = (rpc: RpcName): DescMethod => OpenShell.method[rpc];
export const isBuilt = (rpc: RpcName): boolean => compatibility[rpc].state === "built";

/** The message that carries a request's fields: streams with a `start` carry them there. */
export function requestOf(rpc: RpcName) {
  const { input } = methodOf(rpc);
  const start = input.fields.find((field) => field.name === "start" && field.fieldKind === "message");
  return { schema: start?.message ?? input, start: start !== undefined };
}

const fieldOf = (rpc: RpcName, name: string) => requestOf(rpc).schema.fields.find((field) => field.name === name);

export const hasSelector = (rpc: RpcName): boolean =>
  fieldOf(rpc, "workspace_scope")?.message === WorkspaceSelectorSchema;
export const hasRequestId = (rpc: RpcName): boolean => fieldOf(rpc, "request_id") !== undefined;
export const isPaged = (rpc: RpcName): boolean => fieldOf(rpc, "page_token") !== undefined;

type Init = Readonly<Record<string, unknown>>;

const policy: MessageInitShape<typeof UpdateConfigRequestSchema>["policy"] = { version: 1 };

/** What a request needs beside its selector and the name of a sandbox or provider. */
export const SAMPLES: Partial<Record<RpcName, Init>> = {
  createSandbox: { spec: {} },
  beginRootfsTarStaging: { fileName: "x.tar", sizeBytes: 1n },
  execSandbox: { command: ["true"] },
  execSandboxInteractive: { command: ["true"] },
  attachSandboxProvider: { provider: "p" },
  detachSandboxProvider: { provider: "p" },
  getSandboxProviderStatus: { provider: "p" },
  createProvider: { provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "t" } } },
  updateProvider: { provider: { metadata: { name: "p" }, credentials: { TOKEN: "u" } } },
  updateConfig: { policy },
};

export const inWorkspace = (workspace: string) => ({
  workspaceScope: { selection: { case: "workspace", value: workspace } as const },
});

/** A request that lacks nothing but what it speaks of: names are `x`. */
export function sampleOf(rpc: RpcName, overrides: Init = {}): Init {
  const names = ["name", "sandbox"].filter((name) => fieldOf(rpc, name) !== undefined);
  return {
    ...(hasSelector(rpc) ? inWorkspace("default") : {}),
    ...Object.fromEntries(names.map((name) => [name, "x"])),
    ...SAMPLES[rpc],
    ...overrides,
  };
}

export interface Answer {
  readonly error: ConnectError | undefined;
  /** The one response, or the first message of a stream. */
  readonly message: Readonly<Record<string, unknown>> | undefined;
  readonly headers: Headers;
}

/** Calls an RPC. A stream is left after its first message. Waits for the end of every other call. */
export async function call(gateway: Pick<Harness, "client">, rpc: RpcName, request: Init): Promise<Answer> {
  const method = methodOf(rpc);
  const headers = new Headers();
  const onHeader = (received: Headers): void => {
    for (const [key, value] of received) headers.set(key, value);
  };
  const options = { onHeader };
  const client = gateway.client[rpc] as (input: unknown, options: object) => unknown;
  const { schema, start } = requestOf(rpc);
  const streaming = method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming";
  const input = start
    ? create(method.input, { payload: { case: "start", value: create(schema, request) } } as never)
    : request;
  const inputs = async function* () {
    yield input;
  };
  try {
    const answer = client(streaming ? inputs() : input, options);
    if (method.methodKind === "unary" || method.methodKind === "client_streaming")
      return { error: undefined, message: (await answer) as Answer["message"], headers };
    for await (const message of answer as AsyncIterable<Answer["message"]>)
      return { error: undefined, message, headers };
    return { error: undefined, message: undefined, headers };
  } catch (error) {
    return { error: ConnectError.from(error), message: undefined, headers };
  }
}

/** The error of a call that must fail, with its details. */
export async function refusal(gateway: Pick<Harness, "client">, rpc: RpcName, request: Init) {
  const { error } = await call(gateway, rpc, request);
  if (error === undefined) throw new Error(`${rpc} succeeded`);
  const details = readErrorDetails(error);
  return {
    code: error.code,
    message: error.rawMessage,
    fields: details.violations.map(({ field }) => field),
    ...details,
  };
}

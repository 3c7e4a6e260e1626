import type { DescMessage, Message } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import { OpenShell, type WorkspaceSelector, WorkspaceSelectorSchema } from "@openshell/api";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { type ApiError, invalidArgument } from "@openshell/api/errors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { MAX_VIOLATIONS } from "@openshell/api/violations.ts";

/** Messages in messages that are looked into; a request that nests deeper does not decode. */
const MAX_DEPTH = 100;

/**
 * Handlers that refuse a change whose request holds fields that this release of the API does not have: a condition or limit that
 * a newer client relies on must not be left out in silence. Reading requests are answered without them, as protobuf intends.
 * Changes are the RPCs that have a `request_id`.
 */
export function refusingUnknownFields(handlers: Partial<OpenShellImpl>): Partial<OpenShellImpl> {
  const guarded = Object.entries(handlers).map(([name, handler]) => [name, guard(name as RpcName, handler as Handler)]);
  return Object.fromEntries(guarded);
}

type Handler = (request: unknown, context: HandlerContext) => unknown;

function guard(name: RpcName, handler: Handler): Handler {
  const { input, methodKind } = OpenShell.method[name];
  const carrier = input.fields.find((field) => field.name === "start")?.message ?? input;
  if (!carrier.fields.some((field) => field.name === "request_id")) return handler;
  switch (methodKind) {
    case "unary":
      return async (request, context) => {
        check(input, request as Message);
        return await (handler(request, context) as Promise<unknown>);
      };
    case "server_streaming":
      return (request, context) => {
        const error = problem(input, request as Message);
        return error === undefined ? handler(request, context) : failing(error);
      };
    default:
      return (requests, context) => handler(checkingFirst(input, requests as AsyncIterable<Message>), context);
  }
}

/** The same messages; those after the first carry data alone. */
function checkingFirst(schema: DescMessage, messages: AsyncIterable<Message>): AsyncIterable<Message> {
  return {
    [Symbol.asyncIterator]() {
      const inner = messages[Symbol.asyncIterator]();
      let first = true;
      const next = async (): Promise<IteratorResult<Message>> => {
        const result = await inner.next();
        if (first && !result.done) check(schema, result.value);
        first = false;
        return result;
      };
      const leave = inner.return?.bind(inner);
      return {
        next: () => (first ? next() : inner.next()),
        ...(leave === undefined ? {} : { return: leave }),
      };
    },
  };
}

function failing(error: ApiError): AsyncIterable<never> {
  return { [Symbol.asyncIterator]: () => ({ next: () => Promise.reject(error) }) };
}

function check(schema: DescMessage, message: Message): void {
  const error = problem(schema, message);
  if (error !== undefined) throw error;
}

function problem(schema: DescMessage, message: Message): ApiError | undefined {
  const found = unknownFields(schema, message);
  if (found.length === 0) return undefined;
  const violations = found.map(({ path, number }) => ({
    field: path === "" ? `#${number}` : `${path}.#${number}`,
    description: `field ${number} of ${path === "" ? "the request" : path} is not known to this gateway`,
  }));
  return invalidArgument(violations, { next: "Leave it out, or upgrade the gateway" });
}

interface UnknownField {
  /** The message that holds it, in proto names; empty for the request. */
  readonly path: string;
  readonly number: number;
}

/** Fields of a message, at any depth, that its schema does not have; the first {@link MAX_VIOLATIONS} of them. */
export function unknownFields(schema: DescMessage, message: Message): readonly UnknownField[] {
  const found: UnknownField[] = [];
  collect(schema, message, "", 0, found);
  return found;
}

function collect(schema: DescMessage, message: Message, path: string, depth: number, found: UnknownField[]): void {
  // A selector without an arm is refused as such: what its bytes mean to a decoder says nothing to their author.
  const armless = schema === WorkspaceSelectorSchema && (message as WorkspaceSelector).selection.case === undefined;
  const room = MAX_VIOLATIONS - found.length;
  if (!armless) for (const { no } of message.$unknown?.slice(0, room) ?? []) found.push({ path, number: no });
  if (depth >= MAX_DEPTH || found.length >= MAX_VIOLATIONS) return;
  const below = (inner: DescMessage, value: unknown, at: string): void =>
    collect(inner, value as Message, path === "" ? at : `${path}.${at}`, depth + 1, found);
  const plain = message as unknown as Readonly<Record<string, unknown>>;
  for (const field of schema.fields) {
    const inner = field.message;
    // A Struct is held as a plain object, and the other well-known types never grow.
    if (inner === undefined || inner.typeName.startsWith("google.protobuf.")) continue;
    if (field.oneof !== undefined) {
      const chosen = plain[field.oneof.localName] as { readonly case?: string; readonly value?: unknown };
      if (chosen.case === field.localName) below(inner, chosen.value, field.name);
      continue;
    }
    const value = plain[field.localName];
    if (value === undefined) continue;
    if (field.fieldKind === "list") {
      for (const [index, item] of (value as readonly unknown[]).entries())
        below(inner, item, `${field.name}[${index}]`);
    } else if (field.fieldKind === "map") {
      for (const [key, item] of Object.entries(value as object)) below(inner, item, `${field.name}[${key}]`);
    } else below(inner, value, field.name);
  }
}

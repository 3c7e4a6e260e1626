import { Code, ConnectError, type HandlerContext, type Interceptor } from "@connectrpc/connect";
import { complete } from "../codec.ts";
import type { CallContext } from "./context.ts";
import type { MethodImplSpec } from "./router.ts";

type AnyFn = ReturnType<Interceptor>;
type AnyRequest = Parameters<AnyFn>[0];
type AnyResponse = Awaited<ReturnType<AnyFn>>;
type AnyMessage = Parameters<typeof complete>[1];

/** The last of `interceptors` is called last, directly around the handler. */
function intercepted(handler: AnyFn, interceptors: readonly Interceptor[]): AnyFn {
  return interceptors.reduceRight((next, interceptor) => interceptor(next), handler);
}

/** What interceptors see of a request; costly parts are read from the context when asked for. */
function requestOf(context: CallContext, stream: boolean, message: unknown): AnyRequest {
  return {
    stream,
    method: context.method,
    message,
    service: context.service,
    requestMethod: context.requestMethod,
    get url() {
      return context.url;
    },
    get signal() {
      return context.signal;
    },
    get header() {
      return context.requestHeader;
    },
    get contextValues() {
      return context.values;
    },
  } as AnyRequest;
}

function responseOf(context: CallContext, stream: boolean, message: unknown): AnyResponse {
  return {
    stream,
    method: context.method,
    message,
    service: context.service,
    get header() {
      return context.responseHeader;
    },
    get trailer() {
      return context.responseTrailer;
    },
  } as AnyResponse;
}

/** The context for a handler: the call's own, unless an interceptor passed on a request of its own making. */
function contextFor(context: CallContext, original: AnyRequest, request: AnyRequest): HandlerContext {
  if (request === original) return context;
  const { header: requestHeader, signal, contextValues: values } = request;
  return context.with({ requestHeader, signal, values });
}

/** Response metadata of an interceptor that made a response of its own. */
function adoptMetadata(context: CallContext, response: AnyResponse, own: AnyResponse | undefined): void {
  if (response === own) return;
  replaceAll(response.header, context.responseHeader);
  replaceAll(response.trailer, context.responseTrailer);
}

function replaceAll(from: Headers, to: Headers): void {
  if (from === to) return;
  for (const name of [...to.keys()]) to.delete(name);
  from.forEach((value, name) => {
    to.set(name, value);
  });
}

/** Runs a unary handler within the interceptors. */
export async function invokeUnary(
  spec: Extract<MethodImplSpec, { kind: "unary" }>,
  context: CallContext,
  message: AnyMessage,
  interceptors: readonly Interceptor[],
): Promise<AnyMessage> {
  if (interceptors.length === 0) return spec.impl(message as never, context);
  const request = requestOf(context, false, message);
  let own: AnyResponse | undefined;
  const handler: AnyFn = async (received) => {
    const output = await spec.impl(received.message as never, contextFor(context, request, received));
    own = responseOf(context, false, complete(spec.method.output, output));
    return own;
  };
  const response = await intercepted(handler, interceptors)(request);
  adoptMetadata(context, response, own);
  return response.message as AnyMessage;
}

/** What a streaming handler gives; read `messages` to the end, then call `ended`. */
export interface StreamOutput {
  readonly messages: AsyncIterable<AnyMessage>;
  /** Takes over the trailers of an interceptor that made a response of its own. */
  readonly ended: () => void;
}

/** Starts a streaming handler of any kind within the interceptors. */
export async function invokeStream(
  spec: Exclude<MethodImplSpec, { kind: "unary" }>,
  context: CallContext,
  messages: AsyncIterable<unknown>,
  interceptors: readonly Interceptor[],
): Promise<StreamOutput> {
  if (interceptors.length === 0) return { messages: outputOf(spec, messages, context), ended: () => {} };
  const request = requestOf(context, true, messages);
  let own: AnyResponse | undefined;
  const handler: AnyFn = async (received) => {
    const input = received.message as AsyncIterable<unknown>;
    own = responseOf(context, true, outputOf(spec, input, contextFor(context, request, received)));
    return own;
  };
  const response = await intercepted(handler, interceptors)(request);
  if (response !== own) replaceAll(response.header, context.responseHeader);
  return {
    messages: response.message as AsyncIterable<AnyMessage>,
    ended: () => {
      if (response !== own) replaceAll(response.trailer, context.responseTrailer);
    },
  };
}

function outputOf(
  spec: Exclude<MethodImplSpec, { kind: "unary" }>,
  input: AsyncIterable<unknown>,
  context: HandlerContext,
): AsyncIterable<AnyMessage> {
  if (spec.kind === "bidi_streaming") return spec.impl(input as never, context) as AsyncIterable<AnyMessage>;
  if (spec.kind === "server_streaming") return serverOutput(spec, input, context);
  return clientOutput(spec, input, context);
}

async function* serverOutput(
  spec: Extract<MethodImplSpec, { kind: "server_streaming" }>,
  input: AsyncIterable<unknown>,
  context: HandlerContext,
): AsyncGenerator<AnyMessage, void, void> {
  yield* spec.impl((await single(input)) as never, context) as AsyncIterable<AnyMessage>;
}

async function* clientOutput(
  spec: Extract<MethodImplSpec, { kind: "client_streaming" }>,
  input: AsyncIterable<unknown>,
  context: HandlerContext,
): AsyncGenerator<AnyMessage, void, void> {
  yield (await spec.impl(input as never, context)) as AnyMessage;
}

/** The one message of a method that takes one. @throws ConnectError UNIMPLEMENTED for none or more, as gRPC has it */
export async function single<Message>(messages: AsyncIterable<Message>): Promise<Message> {
  const iterator = messages[Symbol.asyncIterator]();
  const first = await iterator.next();
  if (first.done) throw new ConnectError("the request has no message", Code.Unimplemented);
  const second = await iterator.next();
  if (!second.done) throw new ConnectError("the request has more than one message", Code.Unimplemented);
  return first.value;
}

import { setTimeout as sleep } from "node:timers/promises";
import { create, type DescService, type Message, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { type Any, anyPack } from "@bufbuild/protobuf/wkt";
import {
  type Code,
  ConnectError,
  type ConnectRouter,
  type HandlerContext,
  type ServiceImpl,
} from "@connectrpc/connect";
import {
  appendHeaders,
  headersOf,
  type Messages,
  type StreamDefinition,
  type StreamRequest,
  type UnaryDefinition,
  type UnaryRequest,
  type WireError,
} from "./messages.ts";

/**
 * The suite's service, written as any service of ours is: for Connect's `ServiceImpl`. Each call says in its first
 * message how it wants to be answered.
 */
export function conformanceRoutes(messages: Messages): (router: ConnectRouter) => void {
  const requestInfo = messages.message("ConformancePayload.RequestInfo");

  /** The type of an `Any` is the message's own. */
  const pack = (message: Message): Any => anyPack(messages.registry.getMessage(message.$typeName)!, message);

  const observed = (requests: readonly Any[], context: HandlerContext): MessageShape<typeof requestInfo> => {
    const timeoutMs = context.timeoutMs();
    const query = context.requestMethod === "GET" ? new URL(context.url).searchParams : undefined;
    return create(requestInfo, {
      requestHeaders: headersOf(context.requestHeader),
      requests,
      ...(timeoutMs === undefined ? {} : { timeoutMs: BigInt(Math.trunc(timeoutMs)) }),
      ...(query === undefined
        ? {}
        : { connectGetInfo: { queryParams: [...query].map(([name, value]) => ({ name, value: [value] })) } }),
    } as MessageInitShape<typeof requestInfo>);
  };

  const errorOf = (wire: WireError, info: Message | undefined): ConnectError => {
    const error = new ConnectError(wire.message ?? "", wire.code as Code);
    for (const { typeUrl, value } of wire.details) {
      error.details.push({ type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1), value });
    }
    if (info !== undefined) error.details.push({ desc: requestInfo, value: info });
    return error;
  };

  const answerOnce = async (
    definition: UnaryDefinition | undefined,
    requests: readonly Any[],
    context: HandlerContext,
  ): Promise<{ readonly payload: object }> => {
    const info = observed(requests, context);
    if (definition === undefined) return { payload: { requestInfo: info } };
    appendHeaders(definition.responseHeaders, context.responseHeader);
    appendHeaders(definition.responseTrailers, context.responseTrailer);
    await delay(definition.responseDelayMs, context);
    const { response } = definition;
    if (response.case === "error") throw errorOf(response.value, info);
    return { payload: { requestInfo: info, data: response.case === undefined ? new Uint8Array() : response.value } };
  };

  const unary = (request: UnaryRequest, context: HandlerContext) =>
    answerOnce(request.responseDefinition, [pack(request)], context);

  async function* answers(
    definition: StreamDefinition | undefined,
    from: number,
    requests: readonly Any[],
    context: HandlerContext,
  ): AsyncGenerator<{ readonly payload: object }> {
    if (definition === undefined) return;
    const { responseData, responseDelayMs, error } = definition;
    for (let sent = from; sent < responseData.length; sent++) {
      await delay(responseDelayMs, context);
      const data = responseData[sent];
      yield { payload: sent === 0 ? { data, requestInfo: observed(requests, context) } : { data } };
    }
    if (error !== undefined) {
      throw errorOf(error, Math.max(from, responseData.length) === 0 ? observed(requests, context) : undefined);
    }
  }

  return (router) => {
    router.service(messages.service, {
      unary,
      idempotentUnary: unary,

      async clientStream(requests: AsyncIterable<UnaryRequest>, context: HandlerContext) {
        const all: Any[] = [];
        let definition: UnaryDefinition | undefined;
        for await (const request of requests) {
          if (all.length === 0) definition = request.responseDefinition;
          all.push(pack(request));
        }
        return answerOnce(definition, all, context);
      },

      async *serverStream(request: StreamRequest, context: HandlerContext) {
        const definition = request.responseDefinition;
        appendHeaders(definition?.responseHeaders ?? [], context.responseHeader);
        appendHeaders(definition?.responseTrailers ?? [], context.responseTrailer);
        yield* answers(definition, 0, [pack(request)], context);
      },

      async *bidiStream(requests: AsyncIterable<StreamRequest>, context: HandlerContext) {
        let first: StreamRequest | undefined;
        let sent = 0;
        /** Of a full-duplex call: since its last response. */
        let unanswered: Any[] = [];
        for await (const request of requests) {
          unanswered.push(pack(request));
          if (first === undefined) {
            first = request;
            appendHeaders(first.responseDefinition?.responseHeaders ?? [], context.responseHeader);
            appendHeaders(first.responseDefinition?.responseTrailers ?? [], context.responseTrailer);
          }
          if (first.fullDuplex !== true) continue;
          const definition = first.responseDefinition;
          const data = definition?.responseData[sent];
          if (definition === undefined || data === undefined) break;
          const info = sent === 0 ? observed(unanswered, context) : { requests: unanswered };
          await delay(definition.responseDelayMs, context);
          yield { payload: { data, requestInfo: info } };
          sent++;
          unanswered = [];
        }
        yield* answers(first?.responseDefinition, sent, unanswered, context);
      },
      // `Unimplemented` is left out: the library has to answer it.
    } as unknown as Partial<ServiceImpl<DescService>>);
  };
}

/** Waits, unless the call ends first: then its reason is thrown. */
async function delay(ms: number, context: HandlerContext): Promise<void> {
  try {
    if (ms > 0) await sleep(ms, undefined, { signal: context.signal });
  } catch {
    throw context.signal.reason;
  }
}

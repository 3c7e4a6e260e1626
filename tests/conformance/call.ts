import { setTimeout as sleep } from "node:timers/promises";
import { type DescMessage, type DescMethod, type DescService, fromBinary, type Message } from "@bufbuild/protobuf";
import { type Any, anyPack } from "@bufbuild/protobuf/wkt";
import { type CallOptions, type Client, ConnectError, createClient } from "@connectrpc/connect";
import { type DisposableTransport, type Implementation, transportOf } from "./implementation.ts";
import {
  appendHeaders,
  type ClientCompatRequest,
  type ClientResponseResult,
  CODEC_JSON,
  COMPRESSION_GZIP,
  FULL_DUPLEX,
  headersOf,
  type Messages,
  type PayloadResponse,
  type WireError,
} from "./messages.ts";

type AnyClient = Client<DescService>;
type Invoke = (input: unknown, options: CallOptions) => Promise<Message> | AsyncIterable<Message>;

/** Makes the calls that the runner asks for. Calls to one server with equal options share a connection. */
export class Calls implements Disposable {
  readonly #messages: Messages;
  readonly #implementation: Implementation;
  readonly #transports = new Map<string, DisposableTransport>();

  constructor(messages: Messages, implementation: Implementation) {
    this.#messages = messages;
    this.#implementation = implementation;
  }

  /** Resolves with the outcome; rejects only when the call could not be made as the request says. */
  async make(request: ClientCompatRequest): Promise<ClientResponseResult> {
    const { service, registry } = this.#messages;
    if (request.service !== service.typeName) throw new Error(`unknown service ${request.service}`);
    const method = service.methods.find(({ name }) => name === request.method);
    if (method === undefined) throw new Error(`unknown method ${request.method}`);
    const inputs = request.requestMessages.map((any) => {
      if (!any.typeUrl.endsWith(`/${method.input.typeName}`)) throw new Error(`${any.typeUrl} is no ${method.name}`);
      return fromBinary(method.input, any.value);
    });
    const header = new Headers();
    appendHeaders(request.requestHeaders, header);
    const call = new Call(request, header, this.#client(request), inputs, (message) => {
      return anyPack(registry.getMessage(message.$typeName) as DescMessage, message);
    });
    return call.run(method);
  }

  #client(request: ClientCompatRequest): AnyClient {
    const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString();
    const { host, port, clientTlsCreds, serverTlsCert, messageReceiveLimit } = request;
    const identity =
      clientTlsCreds === undefined ? {} : { cert: text(clientTlsCreds.cert), key: text(clientTlsCreds.key) };
    const options = {
      target: { host, port, tls: serverTlsCert.length === 0 ? undefined : { ca: text(serverTlsCert), ...identity } },
      json: request.codec === CODEC_JSON,
      gzip: request.compression === COMPRESSION_GZIP,
      readMaxBytes: messageReceiveLimit === 0 ? undefined : messageReceiveLimit,
    };
    const key = JSON.stringify(options);
    let transport = this.#transports.get(key);
    if (transport === undefined) {
      transport = transportOf(this.#implementation, { ...options, registry: this.#messages.registry });
      this.#transports.set(key, transport);
    }
    return createClient(this.#messages.service, transport);
  }

  [Symbol.dispose](): void {
    for (const transport of this.#transports.values()) transport[Symbol.dispose]();
  }
}

/** One call, with what was seen of it. */
class Call {
  readonly #request: ClientCompatRequest;
  readonly #header: Headers;
  readonly #client: AnyClient;
  readonly #inputs: readonly Message[];
  readonly #pack: (message: Message) => Any;
  readonly #canceller = new AbortController();
  readonly #payloads: Message[] = [];
  #sent = 0;

  constructor(
    request: ClientCompatRequest,
    header: Headers,
    client: AnyClient,
    inputs: readonly Message[],
    pack: (message: Message) => Any,
  ) {
    this.#request = request;
    this.#header = header;
    this.#client = client;
    this.#inputs = inputs;
    this.#pack = pack;
  }

  async run(method: DescMethod): Promise<ClientResponseResult> {
    const { streamType, timeoutMs } = this.#request;
    const turns = streamType === FULL_DUPLEX ? new Turns() : undefined;
    let header: Headers | undefined;
    let trailer: Headers | undefined;
    const options: CallOptions = {
      signal: this.#canceller.signal,
      headers: this.#header,
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
      onHeader: (seen) => {
        header = seen;
      },
      onTrailer: (seen) => {
        trailer = seen;
      },
    };
    const invoke = (this.#client as unknown as Record<string, Invoke>)[method.localName]!;
    try {
      const answer = invoke(this.#inputOf(method, turns), options);
      if (answer instanceof Promise) this.#received(await answer);
      else {
        const timing = this.#request.cancel?.cancelTiming;
        for await (const message of answer) {
          this.#received(message);
          if (timing?.case === "afterNumResponses" && timing.value === this.#payloads.length) this.#canceller.abort();
          turns?.next();
        }
      }
      return this.#result(header, trailer);
    } catch (error) {
      return this.#failure(error, header, trailer);
    } finally {
      turns?.end();
    }
  }

  /** What the client's method takes: one message, or all with what happens between and after them. */
  #inputOf(method: DescMethod, turns: Turns | undefined): unknown {
    if (method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming") return this.#input(turns);
    this.#sent = 1;
    this.#cancelAfterwards();
    return this.#inputs[0];
  }

  #cancelAfterwards(): void {
    const { cancel } = this.#request;
    const timing = cancel?.cancelTiming;
    if (cancel === undefined || timing?.case === "afterNumResponses") return;
    setTimeout(() => this.#canceller.abort(), timing?.case === "afterCloseSendMs" ? timing.value : 0).unref();
  }

  /** The request messages with the pauses between them; cancels where the request says so. */
  async *#input(turns: Turns | undefined): AsyncGenerator<Message> {
    const { cancel, requestDelayMs } = this.#request;
    for (const message of this.#inputs) {
      if (requestDelayMs > 0) await sleep(requestDelayMs);
      this.#sent++;
      yield message;
      await turns?.wait();
    }
    if (cancel?.cancelTiming.case === "beforeCloseSend") {
      this.#canceller.abort();
      // Left open: the end of the messages is what must not be sent.
      await new Promise(() => {});
    }
    this.#cancelAfterwards();
  }

  #received(message: Message): void {
    const { payload } = message as PayloadResponse;
    this.#payloads.push(payload ?? ({} as Message));
  }

  #result(header?: Headers, trailer?: Headers, error?: WireError): ClientResponseResult {
    return {
      responseHeaders: headersOf(header ?? new Headers()),
      responseTrailers: headersOf(trailer ?? new Headers()),
      payloads: this.#payloads,
      ...(error === undefined ? {} : { error }),
      numUnsentRequests: this.#inputs.length - this.#sent,
    };
  }

  #failure(reason: unknown, header?: Headers, trailer?: Headers): ClientResponseResult {
    const error = ConnectError.from(reason);
    const details = error.details.map((detail) =>
      "desc" in detail
        ? this.#pack(detail.value as Message)
        : ({ typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value } as Any),
    );
    // An error carries headers and trailers in one; the runner takes them as trailers.
    const wire = { code: error.code as number, message: error.rawMessage, details };
    return this.#result(header, trailer ?? error.metadata, wire);
  }
}

/** In a full-duplex call each request waits for the response to the one before it. */
class Turns {
  #open: () => void = () => {};
  #turn: Promise<void> = Promise.resolve();
  #ended = false;

  constructor() {
    this.#arm();
  }

  #arm(): void {
    this.#turn = new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  /** Resolves after one `next` for each call of it, or `end`. */
  async wait(): Promise<void> {
    if (this.#ended) return;
    await this.#turn;
    if (!this.#ended) this.#arm();
  }

  next(): void {
    this.#open();
  }

  end(): void {
    this.#ended = true;
    this.#open();
  }
}

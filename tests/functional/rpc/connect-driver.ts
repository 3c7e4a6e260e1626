import { create } from "@bufbuild/protobuf";
import { anyPack, type BytesValue, BytesValueSchema } from "@bufbuild/protobuf/wkt";
import { type CallOptions, ConnectError, createClient, encodeBinaryHeader, type Transport } from "@connectrpc/connect";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { Echo } from "./echo-service.ts";
import { patterned, summary } from "./payload.ts";
import { type ClientEvent, type ClientOp, MAX_TEXT, type MetadataList, type Start } from "./protocol.ts";

/** A Connect transport under the orders of protocol.ts: the tests' own end, and the peer that is connect-es. */
export class ConnectDriver {
  readonly #transport: (gzip: boolean) => Transport;
  readonly #emit: (event: ClientEvent) => void;
  readonly #calls = new Map<number, Call>();

  constructor(transport: (gzip: boolean) => Transport, emit: (event: ClientEvent) => void) {
    this.#transport = transport;
    this.#emit = emit;
  }

  handle(op: ClientOp): void {
    if (op.op === "start") {
      const call = new Call(op, this.#transport(op.gzip ?? false), this.#emit);
      this.#calls.set(op.id, call);
      void call.run().finally(() => this.#calls.delete(op.id));
      return;
    }
    const call = this.#calls.get(op.id);
    if (op.op === "send") call?.send(op.count, op.size, op.seed);
    else if (op.op === "close") call?.close();
    else if (op.op === "cancel") call?.cancel();
    else call?.read(op.count);
  }
}

/** Counts what may be taken; takers wait. */
class Credit {
  #free: number;
  #wake = Promise.withResolvers<void>();

  constructor(free: number) {
    this.#free = free;
  }

  add(count: number): void {
    this.#free += count;
    this.#wake.resolve();
    this.#wake = Promise.withResolvers<void>();
  }

  async take(): Promise<void> {
    while (this.#free <= 0) await this.#wake.promise;
    this.#free--;
  }
}

class Call {
  readonly #start: Start;
  readonly #transport: Transport;
  readonly #emit: (event: ClientEvent) => void;
  readonly #aborter = new AbortController();
  readonly #reads: Credit;
  readonly #sends = new Credit(0);
  readonly #queue: { size: number; seed: number }[] = [];
  #closed = false;
  #trailers: MetadataList = [];

  constructor(start: Start, transport: Transport, emit: (event: ClientEvent) => void) {
    this.#start = start;
    this.#transport = transport;
    this.#emit = emit;
    this.#reads = new Credit(start.reads ?? Number.POSITIVE_INFINITY);
  }

  send(count: number, size: number, seed: number): void {
    for (let n = 0; n < count; n++) this.#queue.push({ size, seed: seed + n });
    this.#sends.add(count);
  }

  close(): void {
    this.#closed = true;
    this.#sends.add(1);
  }

  cancel(): void {
    this.#aborter.abort();
    // Whoever waits for permission to read is to learn of it.
    this.#reads.add(Number.POSITIVE_INFINITY);
  }

  read(count: number): void {
    this.#reads.add(count);
  }

  async run(): Promise<void> {
    const { id } = this.#start;
    try {
      await this.#call();
      this.#emit({ id, event: "end", code: 0, message: "", trailers: this.#trailers });
    } catch (reason) {
      const error = ConnectError.from(reason);
      const trailers = new Headers(error.metadata);
      for (const [key, value] of this.#trailers) trailers.set(key, value);
      if (error.details.length > 0) trailers.set("grpc-status-details-bin", envelope(error));
      this.#emit({ id, event: "end", code: error.code, message: error.rawMessage, trailers: [...trailers] });
    }
  }

  async #call(): Promise<void> {
    const { id, kind, metadata, deadlineMs } = this.#start;
    const client = createClient(Echo, this.#transport);
    const headers = new Headers();
    for (const [key, value] of metadata) headers.append(key, value);
    const options: CallOptions = {
      headers,
      signal: this.#aborter.signal,
      ...(deadlineMs === undefined ? {} : { timeoutMs: deadlineMs }),
      onHeader: (got) => this.#emit({ id, event: "headers", metadata: [...got] }),
      onTrailer: (got) => {
        this.#trailers = [...got];
      },
    };
    if (kind === "unary" || kind === "server") {
      await this.#sends.take();
      const { size, seed } = this.#queue.shift()!;
      const request = create(BytesValueSchema, { value: patterned(size, seed) });
      if (kind === "unary") this.#message(await client.unary(request, options));
      else await this.#messages(client.serverStream(request, options));
    } else if (kind === "client") this.#message(await client.clientStream(this.#requests(), options));
    else await this.#messages(client.bidi(this.#requests(), options));
  }

  async *#requests(): AsyncGenerator<BytesValue> {
    let total = 0;
    for (;;) {
      await this.#sends.take();
      const next = this.#queue.shift();
      if (next === undefined) {
        if (this.#closed) return;
        continue;
      }
      yield create(BytesValueSchema, { value: patterned(next.size, next.seed) });
      // Being asked for more means that the transport has taken this one over.
      this.#emit({ id: this.#start.id, event: "sent", total: ++total });
    }
  }

  async #messages(messages: AsyncIterable<BytesValue>): Promise<void> {
    const iterator = messages[Symbol.asyncIterator]();
    for (;;) {
      await this.#reads.take();
      const next = await iterator.next();
      if (next.done) return;
      this.#message(next.value);
    }
  }

  #message({ value }: BytesValue): void {
    const text = value.length <= MAX_TEXT ? { text: Buffer.from(value).toString() } : {};
    this.#emit({ id: this.#start.id, event: "message", ...summary(value), ...text });
  }
}

/** Connect takes the envelope apart; this puts it together again, with the code and text it gave to the error. */
function envelope(error: ConnectError): string {
  const details = error.details.flatMap((detail) => {
    if ("desc" in detail) return [anyPack(detail.desc, create(detail.desc, detail.value))];
    return [{ typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value }];
  });
  return encodeBinaryHeader(
    create(StatusSchema, { code: error.code, message: error.rawMessage, details }),
    StatusSchema,
  );
}

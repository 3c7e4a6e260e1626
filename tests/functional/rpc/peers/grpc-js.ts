import { crc32 } from "node:zlib";
import grpc from "@grpc/grpc-js";
import { decodePayload, encodePayload, patterned, summary } from "../payload.ts";
import {
  type ClientOp,
  MAX_TEXT,
  METHOD,
  type MetadataList,
  type PeerConfig,
  type Report,
  SERVICE,
  type ServerOp,
  type Start,
} from "../protocol.ts";
import { config, emit, onOrder } from "./lines.ts";

/** The peer that is grpc-js, with messages as bytes. */

const MESSAGE_BYTES = 4 * 1024 * 1024;
const identity = (bytes: Buffer): Buffer => bytes;

function toMetadata(list: MetadataList): grpc.Metadata {
  const metadata = new grpc.Metadata();
  for (const [key, value] of list) metadata.add(key, key.endsWith("-bin") ? Buffer.from(value, "base64") : value);
  return metadata;
}

function fromMetadata(metadata: grpc.Metadata): MetadataList {
  return Object.keys(metadata.getMap()).flatMap((key) =>
    metadata.get(key).map((value) => [key, typeof value === "string" ? value : value.toString("base64")] as const),
  );
}

// --- client

type AnyCall = grpc.ClientUnaryCall | grpc.ClientReadableStream<Buffer> | grpc.ClientWritableStream<Buffer>;

class Call {
  readonly #client: grpc.Client;
  readonly #start: Start;
  #call: AnyCall | undefined;
  #credit: number;
  #sent = 0;
  /** Messages that wait until the library takes more. */
  #queue: Promise<void> = Promise.resolve();

  constructor(client: grpc.Client, start: Start) {
    this.#client = client;
    this.#start = start;
    this.#credit = start.reads ?? Number.POSITIVE_INFINITY;
    if (start.kind === "client" || start.kind === "bidi") this.#open();
  }

  #options(): grpc.CallOptions {
    const { deadlineMs } = this.#start;
    return deadlineMs === undefined ? {} : { deadline: Date.now() + deadlineMs };
  }

  #open(request?: Buffer): void {
    const { kind, metadata } = this.#start;
    const path = `/${SERVICE}/${METHOD[kind]}`;
    const rest = [toMetadata(metadata), this.#options()] as const;
    const answered = (error: grpc.ServiceError | null, value?: Buffer): void => {
      if (error === null && value !== undefined) this.#message(value);
    };
    const one = this.#client;
    if (kind === "unary") this.#call = one.makeUnaryRequest(path, identity, identity, request!, ...rest, answered);
    else if (kind === "server") this.#call = one.makeServerStreamRequest(path, identity, identity, request!, ...rest);
    else if (kind === "client") this.#call = one.makeClientStreamRequest(path, identity, identity, ...rest, answered);
    else this.#call = one.makeBidiStreamRequest(path, identity, identity, ...rest);
    const call = this.#call as grpc.ClientDuplexStream<Buffer, Buffer>;
    const { id } = this.#start;
    call.on("metadata", (got: grpc.Metadata) => emit({ id, event: "headers", metadata: fromMetadata(got) }));
    call.on("status", ({ code, details, metadata: got }: grpc.StatusObject) => {
      // The answer of a unary call is delivered in the same turn as its status, after it.
      setImmediate(() => emit({ id, event: "end", code, message: details, trailers: fromMetadata(got) }));
    });
    call.on("error", () => {});
    if (kind === "server" || kind === "bidi") {
      call.on("readable", () => this.#drain());
    }
  }

  #drain(): void {
    const call = this.#call as grpc.ClientReadableStream<Buffer>;
    while (this.#credit > 0) {
      const message = call.read() as Buffer | null;
      if (message === null) return;
      this.#credit--;
      this.#message(message);
    }
  }

  #message(message: Buffer): void {
    const payload = decodePayload(message);
    const text = payload.length <= MAX_TEXT ? { text: payload.toString() } : {};
    emit({ id: this.#start.id, event: "message", ...summary(payload), ...text });
  }

  read(count: number): void {
    this.#credit += count;
    this.#drain();
  }

  send(count: number, size: number, seed: number): void {
    if (this.#call === undefined) {
      this.#open(encodePayload(patterned(size, seed)));
      return;
    }
    const call = this.#call as grpc.ClientWritableStream<Buffer>;
    this.#queue = this.#queue.then(async () => {
      for (let n = 0; n < count; n++) {
        const written = new Promise<void>((done) => call.write(encodePayload(patterned(size, seed + n)), () => done()));
        await written;
        emit({ id: this.#start.id, event: "sent", total: ++this.#sent });
      }
    });
  }

  close(): void {
    void this.#queue.then(() => (this.#call as grpc.ClientWritableStream<Buffer>).end());
  }

  cancel(): void {
    this.#call?.cancel();
  }
}

function client({ address, tls, keepaliveMs }: PeerConfig): void {
  const credentials =
    tls === undefined
      ? grpc.credentials.createInsecure()
      : grpc.credentials.createSsl(Buffer.from(tls.ca), Buffer.from(tls.key), Buffer.from(tls.cert));
  const keepalive =
    keepaliveMs === undefined
      ? {}
      : { "grpc.keepalive_time_ms": keepaliveMs, "grpc.keepalive_permit_without_calls": 1 };
  const own = { ...keepalive, "grpc.ssl_target_name_override": "localhost" };
  const make = (algorithm: number) =>
    new grpc.Client(address, credentials, { ...own, "grpc.default_compression_algorithm": algorithm });
  const plain = make(grpc.compressionAlgorithms.identity);
  let compressing: grpc.Client | undefined;
  const calls = new Map<number, Call>();
  onOrder<ClientOp>((op) => {
    if (op.op === "start") {
      if (op.gzip) compressing ??= make(grpc.compressionAlgorithms.gzip);
      calls.set(op.id, new Call(op.gzip ? compressing! : plain, op));
    } else if (op.op === "send") calls.get(op.id)!.send(op.count, op.size, op.seed);
    else if (op.op === "close") calls.get(op.id)!.close();
    else if (op.op === "cancel") calls.get(op.id)!.cancel();
    else calls.get(op.id)!.read(op.count);
  });
}

// --- server

type Mutable<T> = { -readonly [K in keyof T]: T[K] };
type ServerCall = grpc.ServerDuplexStream<Buffer, Buffer>;

const records = new Map<string, Mutable<Report>>();
const gates = new Map<string, PromiseWithResolvers<void>>();

function gate(name: string): PromiseWithResolvers<void> {
  let found = gates.get(name);
  if (found === undefined) {
    found = Promise.withResolvers<void>();
    gates.set(name, found);
  }
  return found;
}

class Handling {
  readonly report: Mutable<Report>;
  readonly trailers = new grpc.Metadata();
  readonly #call: ServerCall;

  constructor(call: ServerCall, secure: boolean) {
    this.#call = call;
    const deadline = Number(call.getDeadline());
    const certificate = secure ? call.getAuthContext().sslPeerCertificate : undefined;
    const name = certificate?.subject?.CN;
    this.report = {
      started: true,
      done: false,
      cancelled: false,
      received: 0,
      sent: 0,
      halfClosed: false,
      deadlineMs: Number.isFinite(deadline) ? deadline - Date.now() : null,
      peerName: typeof name === "string" ? name : "",
    };
    const tag = this.text("tag");
    if (tag !== undefined) records.set(tag, this.report);
    call.on("cancelled", () => {
      if (!this.report.done) this.report.cancelled = true;
      this.report.done = true;
    });
    call.on("error", () => {});
  }

  text(key: string): string | undefined {
    return this.#call.metadata.get(`do-${key}`)[0] as string | undefined;
  }

  number(key: string): number | undefined {
    const value = this.text(key);
    return value === undefined ? undefined : Number(value);
  }

  bytes(key: string): Buffer | undefined {
    return this.#call.metadata.get(`do-${key}-bin`)[0] as Buffer | undefined;
  }

  async begin(): Promise<void> {
    if (this.text("echo-metadata") !== undefined) {
      const headers = new grpc.Metadata();
      for (const key of Object.keys(this.#call.metadata.getMap())) {
        if (!key.startsWith("x-")) continue;
        for (const value of this.#call.metadata.get(key)) {
          headers.add(`h-${key.slice(2)}`, value);
          this.trailers.add(`t-${key.slice(2)}`, value);
        }
      }
      this.#call.sendMetadata(headers);
    }
    const held = this.text("hold");
    if (held === undefined) return;
    const cancelled = new Promise<void>((done) => this.#call.on("cancelled", done));
    await Promise.race([gate(held).promise, cancelled]);
    if (this.report.cancelled) throw { code: grpc.status.CANCELLED, details: "cancelled" };
  }

  /** The error of `do-fail`, when it is time for it. */
  failure(): Partial<grpc.StatusObject> | undefined {
    const code = this.number("fail");
    if (code === undefined || this.report.sent < (this.number("fail-after") ?? 0)) return undefined;
    const details = this.bytes("details");
    if (details !== undefined) this.trailers.set("grpc-status-details-bin", details);
    return { code, details: this.bytes("message")?.toString() ?? "", metadata: this.trailers };
  }

  /** Ends a streaming call. */
  end(): void {
    const failure = this.failure();
    this.report.done = true;
    if (failure === undefined) this.#call.end(this.trailers);
    else this.#call.emit("error", failure);
  }

  async send(payload: Buffer): Promise<void> {
    const more = this.#call.write(encodePayload(payload));
    this.report.sent++;
    if (more) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#call.once("drain", resolve).once("cancelled", resolve);
    await promise;
  }
}

type Answer = grpc.sendUnaryData<Buffer>;

function handlers(secure: boolean): grpc.UntypedServiceImplementation {
  const methods = {
    unary: async (call: ServerCall & { request: Buffer }, answer: Answer) => {
      const report = call.metadata.get("do-report")[0] as string | undefined;
      if (report !== undefined) {
        const record = records.get(report) ?? { started: false };
        answer(null, encodePayload(Buffer.from(JSON.stringify(record))));
        return;
      }
      const release = call.metadata.get("do-release")[0] as string | undefined;
      if (release !== undefined) {
        gate(release).resolve();
        answer(null, Buffer.alloc(0));
        return;
      }
      const handling = new Handling(call, secure);
      handling.report.received++;
      try {
        await handling.begin();
      } catch (error) {
        answer(error as grpc.ServiceError);
        return;
      }
      const failure = handling.failure();
      handling.report.done = true;
      if (failure !== undefined) answer(failure as grpc.ServiceError);
      else {
        handling.report.sent++;
        answer(null, call.request, handling.trailers);
      }
    },
    server: async (call: ServerCall & { request: Buffer }) => {
      const handling = new Handling(call, secure);
      handling.report.received++;
      try {
        await handling.begin();
      } catch {
        return;
      }
      const size = handling.number("size");
      for (let n = 0; n < (handling.number("count") ?? 1); n++) {
        if (handling.report.cancelled) return;
        if (handling.failure() !== undefined) break;
        await handling.send(size === undefined ? decodePayload(call.request) : patterned(size, n));
      }
      if (!handling.report.cancelled) handling.end();
    },
    client: async (call: ServerCall, answer: Answer) => {
      const handling = new Handling(call, secure);
      try {
        await handling.begin();
        const told = handling.failure();
        if (told !== undefined) {
          handling.report.done = true;
          answer(told as grpc.ServiceError);
          return;
        }
        let bytes = 0;
        let crc = 0;
        let early = false;
        for await (const message of call) {
          const payload = decodePayload(message as Buffer);
          handling.report.received++;
          bytes += payload.length;
          crc = crc32(payload, crc);
          early = handling.report.received === handling.number("end-after");
          if (early) break;
        }
        if (handling.report.cancelled) return;
        handling.report.halfClosed = !early;
        const failure = handling.failure();
        handling.report.done = true;
        if (failure !== undefined) answer(failure as grpc.ServiceError);
        else answer(null, encodePayload(Buffer.from(`${handling.report.received} ${bytes} ${crc}`)), handling.trailers);
      } catch (error) {
        answer(error as grpc.ServiceError);
      }
    },
    bidi: async (call: ServerCall) => {
      const handling = new Handling(call, secure);
      try {
        await handling.begin();
      } catch {
        return;
      }
      const ended = new Promise<void>((done) => call.on("end", done));
      let queue = Promise.resolve();
      let over = false;
      const finish = () => {
        over = true;
        if (!handling.report.cancelled) handling.end();
      };
      if (handling.failure() !== undefined) {
        finish();
        return;
      }
      call.on("data", (message: Buffer) => {
        call.pause();
        queue = queue.then(async () => {
          if (over) return;
          handling.report.received++;
          if (handling.failure() !== undefined) return finish();
          await handling.send(decodePayload(message));
          if (handling.report.received === handling.number("end-after")) return finish();
          call.resume();
        });
      });
      await ended;
      await queue;
      if (over) return;
      handling.report.halfClosed = true;
      finish();
    },
  };
  // Which of the four types a handler has follows from its definition, not from here.
  return methods as unknown as grpc.UntypedServiceImplementation;
}

function server({ address, tls }: PeerConfig): void {
  const definition: grpc.ServiceDefinition = Object.fromEntries(
    Object.entries(METHOD).map(([kind, name]) => [
      kind,
      {
        path: `/${SERVICE}/${name}`,
        requestStream: kind === "client" || kind === "bidi",
        responseStream: kind === "server" || kind === "bidi",
        requestSerialize: identity,
        requestDeserialize: identity,
        responseSerialize: identity,
        responseDeserialize: identity,
      },
    ]),
  );
  const credentials =
    tls === undefined
      ? grpc.ServerCredentials.createInsecure()
      : grpc.ServerCredentials.createSsl(
          Buffer.from(tls.ca),
          [{ private_key: Buffer.from(tls.key), cert_chain: Buffer.from(tls.cert) }],
          true,
        );
  let current: grpc.Server | undefined;
  const listen = (): void => {
    const old = current;
    current = new grpc.Server({ "grpc.max_receive_message_length": MESSAGE_BYTES });
    current.addService(definition, handlers(tls !== undefined));
    current.bindAsync(address, credentials, (error, port) => {
      if (error !== null) throw error;
      emit({ listening: address.startsWith("unix:") ? address : `127.0.0.1:${port}` });
      old?.tryShutdown(() => {});
    });
  };
  listen();
  onOrder<ServerOp>(listen);
}

const settings = config();
if (settings.role === "client") client(settings);
else server(settings);

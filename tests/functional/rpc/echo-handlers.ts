import { crc32 } from "node:zlib";
import { create, fromBinary } from "@bufbuild/protobuf";
import { type BytesValue, BytesValueSchema } from "@bufbuild/protobuf/wkt";
import {
  type Code,
  ConnectError,
  type ConnectRouter,
  createContextKey,
  decodeBinaryHeader,
  type HandlerContext,
  type ServiceImpl,
} from "@connectrpc/connect";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { Echo } from "./echo-service.ts";
import { patterned } from "./payload.ts";
import type { Report } from "./protocol.ts";

/** The echo service for Connect's handler types: what protocol.ts promises of a server. */

/** Common name of the client's certificate; set by whoever knows the connection. */
export const peerNameKey = createContextKey("");

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** Opens once and for good; whoever gives up waiting leaves nothing behind. */
class Gate {
  readonly #waiting = new Set<() => void>();
  #open = false;

  release(): void {
    this.#open = true;
    for (const go of this.#waiting) go();
    this.#waiting.clear();
  }

  async wait(signal: AbortSignal): Promise<void> {
    if (this.#open) return;
    await new Promise<void>((resolve, reject) => {
      const gone = () => {
        this.#waiting.delete(resolve);
        reject(signal.reason);
      };
      if (signal.aborted) gone();
      else signal.addEventListener("abort", gone, { once: true });
      this.#waiting.add(resolve);
    });
  }
}

class State {
  readonly records = new Map<string, Mutable<Report>>();
  readonly #gates = new Map<string, Gate>();

  gate(name: string): Gate {
    const gate = this.#gates.get(name) ?? new Gate();
    this.#gates.set(name, gate);
    return gate;
  }
}

/** One call: its instructions and its record. */
class Call {
  readonly report: Mutable<Report>;
  readonly #state: State;
  readonly #context: HandlerContext;
  #finished = false;

  constructor(state: State, context: HandlerContext) {
    this.#state = state;
    this.#context = context;
    const deadlineMs = context.timeoutMs() ?? null;
    const peerName = context.values.get(peerNameKey);
    const nothing = { done: false, cancelled: false, received: 0, sent: 0, halfClosed: false };
    this.report = { started: true, deadlineMs, peerName, ...nothing };
    const tag = this.text("tag");
    if (tag !== undefined) state.records.set(tag, this.report);
    const ended = () => {
      if (!this.report.done) this.report.cancelled = true;
    };
    if (context.signal.aborted) ended();
    else context.signal.addEventListener("abort", ended);
  }

  /** The handler has said all it had to say; what comes now is the library's. */
  finished(): void {
    this.#finished = true;
  }

  /** The handler is over, whoever ended it. */
  ended(): void {
    if (!this.#finished) this.report.cancelled = true;
    this.report.done = true;
  }

  text(key: string): string | undefined {
    return this.#context.requestHeader.get(`do-${key}`) ?? undefined;
  }

  number(key: string): number | undefined {
    const value = this.text(key);
    return value === undefined ? undefined : Number(value);
  }

  /** Metadata that comes back, then the gate. */
  async begin(): Promise<void> {
    if (this.text("echo-metadata") !== undefined) {
      for (const [key, value] of this.#context.requestHeader) {
        if (!key.startsWith("x-")) continue;
        this.#context.responseHeader.set(`h-${key.slice(2)}`, value);
        this.#context.responseTrailer.set(`t-${key.slice(2)}`, value);
      }
    }
    const gate = this.text("hold");
    if (gate !== undefined) await this.#state.gate(gate).wait(this.#context.signal);
    if (this.number("fail-after") === undefined) this.failIfTold();
  }

  /** The error of `do-fail`, when it is time for it. */
  failIfTold(): void {
    const code = this.number("fail");
    if (code === undefined || this.report.sent < (this.number("fail-after") ?? 0)) return;
    const message = this.text("message-bin");
    const text = message === undefined ? "" : Buffer.from(decodeBinaryHeader(message)).toString();
    const error = new ConnectError(text, code as Code);
    const details = this.text("details-bin");
    if (details !== undefined) {
      const status = fromBinary(StatusSchema, decodeBinaryHeader(details));
      // What Connect adds of itself is the envelope; the details are the same.
      error.details = status.details.map(({ typeUrl, value }) => ({ type: typeUrl.split("/").at(-1)!, value }));
    }
    this.finished();
    throw error;
  }

  received(): void {
    this.report.received++;
  }

  sent(payload: Uint8Array): BytesValue {
    this.report.sent++;
    return create(BytesValueSchema, { value: payload });
  }
}

export function echoService(): ServiceImpl<typeof Echo> {
  const state = new State();
  return {
    async unary(request, context) {
      const report = context.requestHeader.get("do-report");
      if (report !== null) {
        const record = state.records.get(report) ?? { started: false };
        return create(BytesValueSchema, { value: Buffer.from(JSON.stringify(record)) });
      }
      const release = context.requestHeader.get("do-release");
      if (release !== null) {
        state.gate(release).release();
        return create(BytesValueSchema);
      }
      const call = new Call(state, context);
      try {
        call.received();
        await call.begin();
        call.finished();
        return call.sent(request.value);
      } finally {
        call.ended();
      }
    },
    async *serverStream(request, context) {
      const call = new Call(state, context);
      try {
        call.received();
        await call.begin();
        const size = call.number("size");
        const count = call.number("count") ?? 1;
        for (let n = 0; n < count; n++) {
          call.failIfTold();
          yield call.sent(size === undefined ? request.value : patterned(size, n));
        }
        call.failIfTold();
        call.finished();
      } finally {
        call.ended();
      }
    },
    async clientStream(requests, context) {
      const call = new Call(state, context);
      try {
        await call.begin();
        const end = call.number("end-after");
        let bytes = 0;
        let crc = 0;
        let early = false;
        for await (const { value } of requests) {
          call.received();
          bytes += value.length;
          crc = crc32(value, crc);
          early = call.report.received === end;
          if (early) break;
        }
        call.report.halfClosed = !early;
        call.finished();
        return call.sent(Buffer.from(`${call.report.received} ${bytes} ${crc}`));
      } finally {
        call.ended();
      }
    },
    async *bidi(requests, context) {
      const call = new Call(state, context);
      try {
        await call.begin();
        const end = call.number("end-after");
        for await (const { value } of requests) {
          call.received();
          call.failIfTold();
          yield call.sent(value);
          if (call.report.received !== end) continue;
          call.finished();
          return;
        }
        call.report.halfClosed = true;
        call.failIfTold();
        call.finished();
      } finally {
        call.ended();
      }
    },
  };
}

/** For the router of a server. */
export function echoRoutes(): (router: ConnectRouter) => void {
  const service = echoService();
  return (router) => void router.service(Echo, service);
}

import { setTimeout as sleep } from "node:timers/promises";
import { patterned, summary } from "./payload.ts";
import type { ClientEvent, ClientOp, Kind, MetadataList, Report } from "./protocol.ts";

/** A client of the echo service as a test uses it, whichever library it is written with. */

/** Of every wait, on a busy machine. Milliseconds. */
const WAIT_MS = 10_000;
const POLL_MS = 5;

/** Polls until `look` gives something; throws with `what` when it does not in time. */
export async function until<T>(what: string, look: () => T | undefined | Promise<T | undefined>): Promise<T> {
  const end = performance.now() + WAIT_MS;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    if (performance.now() > end) throw new Error(`waited in vain: ${what}`);
    await sleep(POLL_MS);
  }
}

/** A number that stands still: as it is once it has not changed for `stillMs`. */
export async function standstill(look: () => number | Promise<number>, stillMs = 400): Promise<number> {
  const end = performance.now() + WAIT_MS;
  let seen = await look();
  let since = performance.now();
  for (;;) {
    await sleep(POLL_MS);
    const now = await look();
    if (now !== seen) {
      seen = now;
      since = performance.now();
    }
    // Zero is not yet the standstill of something that flows.
    if (seen > 0 && performance.now() - since > stillMs) return seen;
    if (performance.now() > end) throw new Error(`no standstill: ${seen}`);
  }
}

export interface Received {
  readonly length: number;
  readonly crc: number;
  readonly text?: string;
}

export interface End {
  readonly code: number;
  readonly message: string;
  readonly trailers: MetadataList;
}

export interface CallOptions {
  readonly metadata?: MetadataList;
  readonly deadlineMs?: number;
  readonly gzip?: boolean;
  readonly reads?: number;
}

export interface Outcome extends End {
  readonly headers: MetadataList;
  readonly messages: readonly Received[];
}

/** What a patterned payload looks like when it arrives whole. */
export function expected(size: number, seed: number): { length: number; crc: number } {
  return summary(patterned(size, seed));
}

export class RemoteCall {
  headers: MetadataList | undefined;
  readonly messages: Received[] = [];
  sent = 0;
  end: End | undefined;
  readonly id: number;
  readonly #order: (op: ClientOp) => void;

  constructor(id: number, order: (op: ClientOp) => void) {
    this.id = id;
    this.#order = order;
  }

  take(event: ClientEvent): void {
    if (event.event === "headers") this.headers = event.metadata;
    else if (event.event === "sent") this.sent = event.total;
    else if (event.event === "end") this.end = event;
    else {
      const { length, crc, text } = event;
      this.messages.push({ length, crc, ...(text === undefined ? {} : { text }) });
    }
  }

  send(size: number, seed = 0, count = 1): this {
    this.#order({ op: "send", id: this.id, count, size, seed });
    return this;
  }

  close(): this {
    this.#order({ op: "close", id: this.id });
    return this;
  }

  cancel(): void {
    this.#order({ op: "cancel", id: this.id });
  }

  read(count: number): void {
    this.#order({ op: "read", id: this.id, count });
  }

  /** Waits for so many messages. */
  async message(count: number): Promise<Received> {
    const wanted = `message ${count} of call ${this.id}`;
    return until(wanted, () => {
      const got = this.messages[count - 1];
      if (got === undefined && this.end !== undefined) throw new Error(`${wanted}: ended ${JSON.stringify(this.end)}`);
      return got;
    });
  }

  async ended(): Promise<Outcome> {
    const end = await until(`the end of call ${this.id}`, () => this.end);
    return { ...end, headers: this.headers ?? [], messages: this.messages };
  }
}

export class Caller {
  readonly #order: (op: ClientOp) => void;
  readonly #calls = new Map<number, RemoteCall>();
  #next = 1;

  constructor(order: (op: ClientOp) => void) {
    this.#order = order;
  }

  take(event: ClientEvent): void {
    this.#calls.get(event.id)?.take(event);
  }

  start(kind: Kind, options: CallOptions = {}): RemoteCall {
    const call = new RemoteCall(this.#next++, this.#order);
    this.#calls.set(call.id, call);
    this.#order({ op: "start", id: call.id, kind, metadata: [], ...options });
    return call;
  }

  unary(size: number, seed = 0, options: CallOptions = {}): Promise<Outcome> {
    return this.start("unary", options).send(size, seed).ended();
  }

  async report(tag: string): Promise<Report> {
    const { code, message, messages } = await this.unary(0, 0, { metadata: [["do-report", tag]] });
    if (code !== 0) throw new Error(`no report: ${code} ${message}`);
    return JSON.parse(messages[0]!.text!) as Report;
  }

  /** Waits until the record of a call says what is wanted. */
  async reported(tag: string, what: string, wanted: (report: Report) => boolean): Promise<Report> {
    let last: Report | undefined;
    return until(`${tag}: ${what}`, async () => {
      last = await this.report(tag);
      return wanted(last) ? last : undefined;
    }).catch((error: Error) => {
      throw new Error(`${error.message}; ${JSON.stringify(last)}`);
    });
  }

  async release(gate: string): Promise<void> {
    await this.unary(0, 0, { metadata: [["do-release", gate]] });
  }
}

/** All values of a key, in order, as HTTP allows them to be joined. */
export function valuesOf(metadata: MetadataList, key: string): readonly string[] {
  return metadata.filter(([name]) => name === key).flatMap(([, value]) => value.split(/,\s*/));
}

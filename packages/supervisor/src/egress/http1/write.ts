import type { Channel } from "../channel.ts";
import type { Body } from "./body.ts";
import { Fields } from "./fields.ts";

/** Writing messages from their parsed form. */

/** Fields that belong to one connection and never travel on (RFC 9110 §7.6.1). Framing is written anew. */
const HOP_BY_HOP = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Copies the end-to-end fields: hop-by-hop ones and those that Connection names stay behind, `skip` (lower case) too. */
export function endToEnd(fields: Fields, connection: readonly string[], skip?: ReadonlySet<string>): Fields {
  const kept = new Fields();
  const { names, keys, values } = fields;
  for (let i = 0; i < names.length; i += 1) {
    const key = keys[i]!;
    if (HOP_BY_HOP.has(key) || skip?.has(key) || (connection.length > 0 && connection.includes(key))) continue;
    kept.add(names[i]!, values[i]!, key);
  }
  return kept;
}

/** The head as latin1 text, with its empty line. */
export function formatHead(startLine: string, fields: Fields): string {
  let text = `${startLine}\r\n`;
  const { names, values } = fields;
  for (let i = 0; i < names.length; i += 1) text += `${names[i]}: ${values[i]}\r\n`;
  return `${text}\r\n`;
}

export type OutgoingFraming = "none" | "length" | "chunked" | "until_close";

/** So many pieces of one read keep their borders; further small ones are gathered, up to so many bytes in one write. */
const KEPT_PIECES = 64;
const SMALL_PIECE_BYTES = 1_024;
const GATHERED_BYTES = 16_384;

/** Passes pieces on with a back-pressure wait each; `chunked` frames them anew. */
export class BodyWriter {
  readonly #channel: Channel;
  readonly #framing: OutgoingFraming;
  readonly #limitMs: number;
  #small: Buffer[] = [];
  #smallBytes = 0;
  #pieces = 0;

  constructor(channel: Channel, framing: OutgoingFraming, limitMs: number) {
    this.#channel = channel;
    this.#framing = framing;
    this.#limitMs = limitMs;
  }

  /**
   * Many small pieces wait for each other until `flush`: a body cut into chunks of one byte would otherwise cost thousands
   * of writes for one read, and hold up every other sandbox of the host.
   */
  write(piece: Buffer): Promise<void> | undefined {
    if (piece.length === 0) return undefined;
    this.#pieces += 1;
    if (piece.length < SMALL_PIECE_BYTES && this.#pieces > KEPT_PIECES) {
      this.#small.push(piece);
      this.#smallBytes += piece.length;
      return this.#smallBytes < GATHERED_BYTES ? undefined : this.flush();
    }
    const before = this.#smallBytes === 0 ? undefined : this.flush();
    const wait = this.#send(piece);
    return before === undefined || wait === undefined
      ? (before ?? wait)
      : Promise.all([before, wait]).then(() => undefined);
  }

  /** Sends what waits. Before any wait for more, so that nothing is ever held back from a slow stream. */
  flush(): Promise<void> | undefined {
    this.#pieces = 0;
    if (this.#smallBytes === 0) return undefined;
    const piece = this.#small.length === 1 ? this.#small[0]! : Buffer.concat(this.#small, this.#smallBytes);
    this.#small = [];
    this.#smallBytes = 0;
    return this.#send(piece);
  }

  #send(piece: Buffer): Promise<void> | undefined {
    if (this.#framing !== "chunked") return this.#channel.write(piece, this.#limitMs);
    this.#channel.cork();
    try {
      const waits = [
        this.#channel.write(`${piece.length.toString(16)}\r\n`, this.#limitMs, "latin1"),
        this.#channel.write(piece, this.#limitMs),
        this.#channel.write("\r\n", this.#limitMs, "latin1"),
      ].filter((wait) => wait !== undefined);
      return waits.length === 0 ? undefined : Promise.all(waits).then(() => undefined);
    } finally {
      this.#channel.uncork();
    }
  }

  /** Only after a complete body: a broken one must stay visibly broken. */
  end(trailers: Fields | undefined): Promise<void> | undefined {
    const before = this.flush();
    if (this.#framing !== "chunked") return before;
    const wait = this.#channel.write(formatHead("0", trailers ?? new Fields()), this.#limitMs, "latin1");
    return before === undefined || wait === undefined
      ? (before ?? wait)
      : Promise.all([before, wait]).then(() => undefined);
  }
}

/**
 * Moves a whole body. What is there at once leaves in one write, together with what the caller wrote into `to` just
 * before: fewer, fuller TLS records and system calls.
 */
export async function copyBody(body: Body, to: Channel, writer: BodyWriter, limitMs: number): Promise<void> {
  let corked = false;
  const cork = (): void => {
    if (!corked) to.cork();
    corked = true;
  };
  const flush = (): void => {
    if (corked) to.uncork();
    corked = false;
  };
  cork();
  try {
    for (;;) {
      const next = body.next(limitMs);
      let piece: Buffer | null;
      if (next instanceof Promise) {
        const sent = writer.flush();
        flush();
        // Waited for below; if the body breaks first, that is the failure to tell.
        sent?.catch(() => undefined);
        piece = await next;
        if (sent !== undefined) await sent;
        cork();
      } else piece = next;
      if (piece === null) break;
      const wait = writer.write(piece);
      if (wait !== undefined) {
        flush();
        await wait;
        cork();
      }
    }
    const wait = writer.end(body.trailers);
    flush();
    if (wait !== undefined) await wait;
  } catch (error) {
    // What came before the break is passed on, as it would have been.
    void writer.flush()?.catch(() => undefined);
    throw error;
  } finally {
    flush();
  }
}

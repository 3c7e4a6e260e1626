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

/** Passes pieces on with a back-pressure wait each; `chunked` frames them anew. */
export class BodyWriter {
  readonly #channel: Channel;
  readonly #framing: OutgoingFraming;
  readonly #limitMs: number;

  constructor(channel: Channel, framing: OutgoingFraming, limitMs: number) {
    this.#channel = channel;
    this.#framing = framing;
    this.#limitMs = limitMs;
  }

  write(piece: Buffer): Promise<void> | undefined {
    if (piece.length === 0) return undefined;
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
    if (this.#framing !== "chunked") return undefined;
    return this.#channel.write(formatHead("0", trailers ?? new Fields()), this.#limitMs, "latin1");
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
        flush();
        piece = await next;
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
  } finally {
    flush();
  }
}

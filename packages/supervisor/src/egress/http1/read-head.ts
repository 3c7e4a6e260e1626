import type { Channel } from "../channel.ts";
import { dripPause } from "../limits.ts";
import { findHeadEnd, HttpParseError, isHopeless } from "./head.ts";

const EMPTY: Buffer = Buffer.alloc(0);

/**
 * The next head with its empty line; undefined when the connection ended before its first byte. `firstMs` limits the
 * wait for the first byte, `restMs` the time from there to the end of the head, however the bytes drip in: the more
 * pieces, the more rarely they are looked at.
 */
export async function readHead(
  channel: Channel,
  limitBytes: number,
  firstMs: number,
  restMs: number,
): Promise<Buffer | undefined> {
  let bytes = EMPTY;
  let until = 0;
  for (let pieces = 0; ; pieces += 1) {
    const pause = dripPause(pieces);
    if (pause > 0) await channel.rest(pause);
    const next = channel.read(bytes.length === 0 ? firstMs : Math.max(1, until - channel.now()));
    const chunk = next instanceof Promise ? await next : next;
    if (chunk === null) {
      if (bytes.length === 0) return undefined;
      throw new HttpParseError("head_end", "The connection ended inside a head");
    }
    const from = bytes.length;
    if (from === 0) until = channel.now() + restMs;
    bytes = from === 0 ? chunk : Buffer.concat([bytes, chunk]);
    const end = findHeadEnd(bytes, from);
    if (end > limitBytes || (end === -1 && bytes.length > limitBytes)) {
      throw new HttpParseError("head_size", "The head is too large");
    }
    if (end !== -1) {
      channel.unread(bytes.subarray(end));
      return end === bytes.length ? bytes : bytes.subarray(0, end);
    }
    if (isHopeless(bytes)) throw new HttpParseError("octets", "The head contains a bare line feed or a NUL");
  }
}

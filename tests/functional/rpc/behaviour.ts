import { crc32 } from "node:zlib";
import { expect } from "vitest";
import { type Caller, type CallOptions, expected } from "./caller.ts";
import { patterned } from "./payload.ts";
import type { Direction, Pair, PairOptions, PeerName } from "./peers.ts";
import type { Kind } from "./protocol.ts";

/** What holds between us and every peer, whoever calls: the names read as a catalogue. */
export interface Behaviour {
  readonly name: string;
  /** What the pair has to be like; absent: a plain connection over loopback that tests share. */
  readonly pair?: (files: PairFiles) => PairOptions;
  /** Peers that cannot do their part, and why. */
  readonly cannot?: Partial<Record<Direction, Partial<Record<PeerName, string>>>>;
  readonly run: (pair: Pair, direction: Direction) => Promise<void>;
}

/** Made once for all pairs. */
export interface PairFiles {
  readonly tls: NonNullable<PairOptions["tls"]>;
  /** A client certificate that the server's authority did not issue. */
  readonly untrusted: NonNullable<PairOptions["tls"]>;
  /** A new path. */
  readonly socketPath: () => string;
}
export const KINDS: readonly Kind[] = ["unary", "server", "client", "bidi"];
export const MIB = 1024 * 1024;
export const LIMIT_BYTES = 4 * MIB;
/** gRPC's status numbers. */
export const OK = 0;
export const CANCELLED = 1;
export const DEADLINE_EXCEEDED = 4;
export const RESOURCE_EXHAUSTED = 8;
export const ABORTED = 10;
export const UNAVAILABLE = 14;
/** Longer than any test. Milliseconds. */
export const LONG_MS = 60_000;

let tags = 0;
/** A name that no other call of this process has. */
export function newTag(): string {
  return `tag-${++tags}`;
}

export const TEXT = 'käse, 100 % 価格\n"quoted" \u{1f9c0} end ';

export function utf8(text: string): string {
  return Buffer.from(text).toString("base64");
}

export async function roundTrips(caller: Caller, kind: Kind, size: number, options: CallOptions = {}): Promise<void> {
  const count = kind === "unary" || kind === "server" ? 1 : 3;
  const call = caller.start(kind, options).send(size, 1, count);
  if (count > 1) call.close();
  const { code, message, messages } = await call.ended();
  expect({ code, message }).toEqual({ code: OK, message: "" });
  if (kind !== "client") {
    expect(messages.map(({ length, crc }) => ({ length, crc }))).toEqual(
      Array.from({ length: count }, (_, n) => expected(size, 1 + n)),
    );
    return;
  }
  const all = Array.from({ length: count }, (_, n) => patterned(size, 1 + n));
  expect(messages[0]?.text).toBe(`${count} ${size * count} ${crc32(Buffer.concat(all))}`);
}

import { Duplex } from "node:stream";
import { BufferBudget, Channel, Deadlines } from "../channel.ts";
import { type FairShare, FairShares } from "../fair-share.ts";

/** A channel over an in-memory stream: `feed` is what the peer sends, `sent` what it got. */
export interface PipedChannel {
  readonly channel: Channel;
  readonly stream: Duplex;
  readonly budget: BufferBudget;
  readonly deadlines: Deadlines;
  feed(bytes: Buffer | string): void;
  finish(): void;
  sent(): string;
}

export function pipedChannel(
  now: () => number = () => performance.now(),
  limit = 1 << 20,
  share: FairShare = new FairShares().open(),
): PipedChannel {
  const written: Buffer[] = [];
  const stream = new Duplex({
    read() {},
    write(chunk: Buffer, _encoding, done) {
      written.push(chunk);
      done();
    },
  });
  const budget = new BufferBudget(limit);
  const deadlines = new Deadlines(now);
  const channel = new Channel(stream, budget, deadlines, share);
  return {
    channel,
    stream,
    budget,
    deadlines,
    feed: (bytes) => void stream.push(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes),
    finish: () => void stream.push(null),
    sent: () => Buffer.concat(written).toString("latin1"),
  };
}

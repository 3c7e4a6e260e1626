import type { OnReadOpts, Socket } from "node:net";
import type { Clock } from "@openshell/base";
import type { BufferBudget, Deadlines } from "./channel.ts";
import type { EgressEvents } from "./events.ts";
import type { FairShare } from "./fair-share.ts";
import type { GenerationHolder } from "./generation.ts";
import type { Identifier } from "./identify.ts";
import type { LimitName } from "./limit-events.ts";
import type { TokenBucket } from "./rate.ts";
import type { SkippedMiddleware } from "./skipped-middleware.ts";
import type { LeafMint } from "./tls/leaf.ts";
import type { UpstreamPool } from "./upstream-pool.ts";

/** Starts a TCP connection to a pinned address; connect errors arrive as `error` events of the socket. `onread` as in net.connect. */
export type Dialer = (address: string, port: number, onread?: OnReadOpts) => Socket;

/** What the parts of one sandbox's egress share. */
export interface EgressContext {
  readonly generations: GenerationHolder;
  readonly identifier: Identifier;
  readonly events: EgressEvents;
  readonly skipped: SkippedMiddleware;
  readonly leaves: LeafMint;
  /** Certificates that this sandbox may have signed: names are the agent's choice, the CPU is everybody's. */
  readonly leafRate: TokenBucket;
  /** A limit of the sandbox was met. */
  readonly onLimit: (limit: LimitName) => void;
  readonly budget: BufferBudget;
  readonly deadlines: Deadlines;
  /** The sandbox's part of the event loop. */
  readonly share: FairShare;
  readonly pool: UpstreamPool;
  readonly dial: Dialer;
  readonly clock: Clock;
  /** A defect of this program: the connection it happened on is broken off, the others go on. */
  readonly onError: (error: unknown) => void;
}

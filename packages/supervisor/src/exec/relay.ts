import { create } from "@bufbuild/protobuf";
import {
  FailureSchema,
  type RelayDownlink,
  RelayHelloSchema,
  type RelayUplink,
  RelayUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { RuntimeError } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { encodedMessage } from "@openshell/rpc";
import { Limits } from "../limits.ts";

/** Whether the command ran, and how it ended, nobody can say any more. */
const OUTCOME_UNKNOWN: ReadonlySet<string> = new Set(["boundary_lost", "boundary_timeout"]);

/** The host's end of one relay: what it sends up, bounded; and what came down. */
export class RelayChannel {
  readonly #up = new BoundedQueue<RelayUplink>(Limits.relayQueueFrames);
  readonly #abort = new AbortController();

  constructor(relayId: string, sandboxId: string) {
    void this.#up.push(
      create(RelayUplinkSchema, {
        message: { case: "hello", value: create(RelayHelloSchema, { relayId, sandboxId }) },
      }),
    );
  }

  /** Frames for the gateway, for the RPC's request stream. */
  get uplink(): AsyncIterable<RelayUplink> {
    return this.#up;
  }

  /** Aborted when the caller went away or the relay failed. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Sends an encoded message (event-bytes.ts); resolves when there is room for the next one. */
  async send(uplink: Uint8Array): Promise<void> {
    const accepted = await this.#up.push(encodedMessage(RelayUplinkSchema, uplink));
    if (!accepted) throw new RuntimeError("relay_closed", "the caller went away");
  }

  /** Ends the relay without a result; the caller sees an error, never an invented exit code. */
  async fail(error: unknown): Promise<void> {
    const known = error instanceof RuntimeError;
    const lost = known && OUTCOME_UNKNOWN.has(error.code);
    await this.#up.push(
      create(RelayUplinkSchema, {
        message: {
          case: "failure",
          value: create(FailureSchema, {
            code: known ? error.code : "internal",
            message: lost
              ? `the outcome of the command is unknown: ${error.message}`
              : known
                ? error.message
                : "the supervisor failed while running the command",
            next: known ? error.next : "See the supervisor's log",
            retryable: lost,
          }),
        },
      }),
    );
    this.#up.close();
  }

  end(): void {
    this.#up.close();
  }

  abort(reason: unknown): void {
    this.#abort.abort(reason);
    this.#up.close();
  }
}

/** Reads the frames of one relay; ends quietly when the caller closes its side. */
export async function* downlinkFrames(
  frames: AsyncIterable<RelayDownlink>,
  channel: RelayChannel,
): AsyncGenerator<RelayDownlink> {
  try {
    yield* frames;
  } catch (error) {
    channel.abort(error);
  }
}

/**
 * Reads frames that nobody wants, to the end of their stream: left unread, they would hold it open, and with it a part of
 * the window that all relays share. Never rejects for frames of {@link downlinkFrames}.
 */
export async function discard(frames: AsyncIterable<RelayDownlink>): Promise<void> {
  for await (const _ of frames);
}

import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { deadlineExceeded, notFound, resourceExhausted } from "@openshell/api/errors.ts";
import {
  type RelayDownlink,
  RelayDownlinkSchema,
  type RelayKind,
  type RelayOpen,
  RelayOpenSchema,
  type RelayUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { DONE } from "../sessions/reader.ts";
import {
  MAX_PENDING_RELAYS,
  MAX_PENDING_RELAYS_PER_SANDBOX,
  RELAY_DOWNLINK_QUEUE,
  RELAY_OPEN_TIMEOUT_MS,
} from "./limits.ts";

/** One open relay as the caller's side sees it. */
export interface RelayChannel {
  readonly relayId: string;
  /** What the host sends after its hello; read at the caller's pace. Throws when the host's stream breaks. */
  readonly uplink: AsyncIterator<RelayUplink>;
  /** Sends one frame, waiting while the host does not read. Throws when its stream has ended. */
  send(message: RelayDownlink["message"], signal?: AbortSignal): Promise<void>;
  /** Ends the stream towards the host. `finished` says that the result was read: otherwise the host ends the process. */
  close(outcome: "finished" | "cancelled"): void;
}

/** The session through which a host is asked to open a relay. */
export interface RelayOpener {
  /** False when it cannot be told. */
  readonly send: (open: RelayOpen) => boolean;
  /** Tells the host that the caller left, past everything that waits in the relay's stream. */
  readonly cancel: (relayId: string) => void;
  /** Calls back when the session ends, until the returned function is called. */
  readonly onEnd: (ended: () => void) => () => void;
}

interface PendingRelay {
  readonly sandboxId: string;
  readonly resolve: (channel: RelayChannel) => void;
  readonly cancel: () => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Pairs a caller who wants a stream into a sandbox with the stream that the sandbox's host opens for it. Bytes pass in
 * both directions only as fast as their reader takes them.
 */
export class RelayBroker {
  readonly #clock: Clock;
  readonly #pending = new Map<string, PendingRelay>();
  readonly #pendingPerSandbox = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get pending(): number {
    return this.#pending.size;
  }

  /** Opens a relay through `opener`. @throws ApiError RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED; RelayUnopened; the signal's reason. */
  async open(sandboxId: string, kind: RelayKind, opener: RelayOpener, signal?: AbortSignal): Promise<RelayChannel> {
    signal?.throwIfAborted();
    const mine = this.#pendingPerSandbox.get(sandboxId) ?? 0;
    if (this.#pending.size >= MAX_PENDING_RELAYS || mine >= MAX_PENDING_RELAYS_PER_SANDBOX) {
      throw resourceExhausted("too many executions are waiting to start", { next: "Try again", retryDelayMs: 100 });
    }
    const relayId = randomUUID();
    const { promise, resolve, reject: refuse } = Promise.withResolvers<RelayChannel>();
    // Forgotten in the same moment: a host that comes then would wait for a caller that is gone.
    const reject = (error: unknown): void => {
      this.#forget(relayId, sandboxId);
      refuse(error);
    };
    this.#pending.set(relayId, { sandboxId, resolve, reject, cancel: () => opener.cancel(relayId) });
    this.#pendingPerSandbox.set(sandboxId, mine + 1);
    const timer = new AbortController();
    const onAbort = (): void => reject(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    const stop = opener.onEnd(() => reject(new RelayUnopened()));
    try {
      if (!opener.send(create(RelayOpenSchema, { relayId, kind }))) throw new RelayUnopened();
      this.#clock.sleep(RELAY_OPEN_TIMEOUT_MS, { signal: timer.signal, unref: true }).then(
        () =>
          reject(
            deadlineExceeded("the sandbox's supervisor did not open the relay in time; nothing was started", {
              next: "Try again; if it stays so, read the sandbox's conditions",
            }),
          ),
        () => {},
      );
      return await promise;
    } finally {
      stop();
      signal?.removeEventListener("abort", onAbort);
      timer.abort(DONE);
      this.#forget(relayId, sandboxId);
    }
  }

  /**
   * The host's side: takes the relay that was asked for and yields what is to be sent. `uplink` is the rest of the host's
   * stream. Returns when the caller has what it wanted; an unfinished caller's leaving shows as a cancelled stream.
   *
   * @throws ApiError NOT_FOUND for a relay that is unknown, expired or another sandbox's.
   */
  async *claim(
    relayId: string,
    sandboxId: string,
    uplink: AsyncIterator<RelayUplink>,
    streamSignal: AbortSignal,
  ): AsyncGenerator<RelayDownlink, void, void> {
    const pending = this.#pending.get(relayId);
    if (pending === undefined || pending.sandboxId !== sandboxId) throw notFound("relay", relayId);
    this.#forget(relayId, sandboxId);
    const downlink = new BoundedQueue<RelayDownlink>(RELAY_DOWNLINK_QUEUE);
    const onAbort = (): void => downlink.close();
    streamSignal.addEventListener("abort", onAbort, { once: true });
    pending.resolve({
      relayId,
      uplink,
      async send(message, signal) {
        const accepted = await downlink.push(create(RelayDownlinkSchema, { message }), signal);
        if (!accepted) throw new RuntimeError("queue_closed", "the receiver is gone");
      },
      close: (outcome) => {
        if (outcome === "cancelled" && !downlink.closed) pending.cancel();
        downlink.close(outcome === "finished" ? undefined : new RelayCancelled());
      },
    });
    try {
      yield* downlink;
    } finally {
      streamSignal.removeEventListener("abort", onAbort);
    }
  }

  /** Ends what waits for a relay of this sandbox: it is being stopped, or its host is gone. */
  rejectPending(sandboxId: string, error: unknown): void {
    for (const pending of this.#pending.values()) if (pending.sandboxId === sandboxId) pending.reject(error);
  }

  #forget(relayId: string, sandboxId: string): void {
    if (!this.#pending.delete(relayId)) return;
    const left = (this.#pendingPerSandbox.get(sandboxId) ?? 1) - 1;
    if (left === 0) this.#pendingPerSandbox.delete(sandboxId);
    else this.#pendingPerSandbox.set(sandboxId, left);
  }
}

/** The supervisor's session ended before its host opened the relay: nothing was started, so it may be asked for again. */
export class RelayUnopened extends Error {
  constructor() {
    super("the supervisor's session ended before the relay was opened");
    this.name = "RelayUnopened";
  }
}

/** The caller left before its result: the stream to the host ends as cancelled. */
export class RelayCancelled extends Error {
  constructor() {
    super("the caller left");
    this.name = "AbortError";
  }
}

import type { HostRecord } from "../store/types.ts";

/**
 * Starts supervisor hosts, knows which are alive, and says who may speak as one. It carries no session: the code that
 * serves ConnectHost reports connections here and is told of deaths.
 */
export interface HostLauncher extends AsyncDisposable {
  /**
   * Takes over the hosts that an earlier gateway process left running: those whose process still has the recorded boot id,
   * pid and start time are poked to reconnect, the rest are recorded as died. Call once, after `subscribe` and after the
   * host socket listens.
   */
  adopt(): Promise<readonly HostRecord[]>;
  /** The host that holds, or shall hold, this sandbox; starts one when there is none. Resolves before the host has connected. */
  ensure(workspace: string, sandboxId: string): Promise<HostRecord>;
  /** The host whose secret this is (hexadecimal, as in the metadata `openshell-host-secret`), if it may connect. */
  authenticate(secretHex: string): Promise<HostRecord | undefined>;
  /** A host said hello. */
  connected(hostId: string, facts: { readonly pid: number; readonly build: string }): Promise<void>;
  /** Its stream ended. A live process is expected to come back; a dead one is reported through `onGone`. */
  disconnected(hostId: string): void;
  /** How many sandboxes it holds: a host that holds none for {@link HOST_IDLE_LIMIT_MS} ({@link OWN_HOST_IDLE_LIMIT_MS} when it is one sandbox's own) is reported through `onIdle`. */
  holds(hostId: string, sandboxes: number): void;
  /** Ends one host: SIGTERM, SIGKILL after {@link HOST_STOP_LIMIT_MS}. Resolves when its process is gone. */
  stop(hostId: string): Promise<void>;
  /** Hosts whose process is believed to run. */
  current(): readonly HostRecord[];
  /** Returns the function that ends the subscription. */
  subscribe(listener: HostListener): () => void;
}

export interface HostListener {
  /**
   * The process is gone without having been asked to. `isolate`: {@link MAX_HOST_DEATHS} in {@link HOST_DEATH_WINDOW_MS},
   * so `ensure` gives each of its sandboxes a host of its own from now on; the listener raises the HIGH event.
   */
  onGone(host: HostRecord, isolate: boolean): void;
  /** Nothing to do for a long time: send HostShutdown, or call `stop`. */
  onIdle(host: HostRecord): void;
}

/** A host without sandboxes ends after 10 minutes: long enough to serve the next run at once, short enough to leave an idle machine alone. */
export const HOST_IDLE_LIMIT_MS = 10 * 60_000;
/** One that may hold a single sandbox serves a start that follows a stop at once; after a deletion it is of no use. */
export const OWN_HOST_IDLE_LIMIT_MS = 2_000;
/** From SIGTERM to SIGKILL. A host has nothing to save; its boundaries outlive it. */
export const HOST_STOP_LIMIT_MS = 500;
/** Deaths of a workspace's hosts within {@link HOST_DEATH_WINDOW_MS} after which sandboxes no longer share one. */
export const MAX_HOST_DEATHS = 3;
export const HOST_DEATH_WINDOW_MS = 60_000;

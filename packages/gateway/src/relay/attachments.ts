import type { Clock } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";
import { MAIN_OUTPUT_GRACE_MS } from "./limits.ts";

interface Entry {
  open: number;
  /** Somebody has attached in this run of the main process. */
  seen: boolean;
  waiters: (() => void)[];
}

/** Who is attached to the main process of which sandbox: its output is kept for them when it has ended. */
export class Attachments {
  readonly #entries = new Map<string, Entry>();

  /** Notes an attachment (from the moment it is asked for, not only when it runs); the returned function ends it. */
  begin(sandboxId: string): () => void {
    const entry = this.#entry(sandboxId);
    entry.open += 1;
    entry.seen = true;
    let ended = false;
    return () => {
      if (ended) return;
      ended = true;
      entry.open -= 1;
      if (entry.open === 0) this.#wake(entry);
    };
  }

  /**
   * Resolves when the output of an ended main process has been taken: nobody is attached, and whoever was announced has
   * been there; after {@link MAIN_OUTPUT_GRACE_MS} in any case.
   */
  async drained(sandboxId: string, announced: boolean, clock: Clock): Promise<void> {
    const entry = this.#entries.get(sandboxId) ?? (announced ? this.#entry(sandboxId) : undefined);
    if (entry === undefined) return;
    const deadline = clock.monotonic() + MAIN_OUTPUT_GRACE_MS;
    while (entry.open > 0 || (announced && !entry.seen)) {
      const left = deadline - clock.monotonic();
      if (left <= 0) return;
      const timer = new AbortController();
      const change = new Promise<void>((resolve) => entry.waiters.push(resolve));
      const timeout = clock.sleep(left, { signal: timer.signal, unref: true }).catch(() => {});
      await Promise.race([change, timeout]);
      timer.abort(DONE);
    }
  }

  /** The last run is over and another one follows: whoever waits to attach is one of that one's. */
  nextRun(sandboxId: string): void {
    const entry = this.#entries.get(sandboxId);
    if (entry === undefined) return;
    entry.seen = entry.open > 0;
    this.#wake(entry);
  }

  /** Forgets the sandbox's last run; ends what waits for it. */
  reset(sandboxId: string): void {
    const entry = this.#entries.get(sandboxId);
    this.#entries.delete(sandboxId);
    if (entry === undefined) return;
    entry.seen = true;
    entry.open = 0;
    this.#wake(entry);
  }

  #entry(sandboxId: string): Entry {
    let entry = this.#entries.get(sandboxId);
    if (entry === undefined) {
      entry = { open: 0, seen: false, waiters: [] };
      this.#entries.set(sandboxId, entry);
    }
    return entry;
  }

  #wake(entry: Entry): void {
    const { waiters } = entry;
    entry.waiters = [];
    for (const waiter of waiters) waiter();
  }
}

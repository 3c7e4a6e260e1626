import { constants } from "node:os";

/** What ends a command from outside. A terminal in raw mode delivers Ctrl-C as a byte to the process inside instead. */
const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const;

/**
 * The same signal again within this time is the same wish: timeout(1) signals its child and then its process group, which
 * the child belongs to. Nobody presses Ctrl-C twice so quickly. Milliseconds.
 */
const ECHO_MS = 100;

type EndingSignal = (typeof SIGNALS)[number];

/**
 * Signals to this process: the first asks the process inside to end, the second (or a failure of the first) gives up at
 * once. Nothing else is left to the default action, which would leave a sandbox behind.
 */
export class Interruption implements Disposable {
  readonly #abort = new AbortController();
  #first: (() => void) | undefined;
  #signal: EndingSignal | undefined;
  #signalledAt = 0;

  static listen(): Interruption {
    const interruption = new Interruption();
    for (const signal of SIGNALS) process.on(signal, interruption.#onSignal);
    return interruption;
  }

  /** The first signal that arrived. */
  get signalled(): EndingSignal | undefined {
    return this.#signal;
  }

  /** Aborted when everything shall end now. */
  get atOnce(): AbortSignal {
    return this.#abort.signal;
  }

  /** From now on the first signal calls `action`; before, it ends everything at once. */
  onFirst(action: () => void): void {
    this.#first = action;
  }

  force(): void {
    this.#abort.abort(new Error("interrupted"));
  }

  /** The status to end with: 128 + our signal where the process inside was ended on its behalf, else its own. */
  exitCode(own: number): number {
    if (this.#signal === undefined) return own;
    const asked = own === 128 + constants.signals.SIGTERM || own === 128 + constants.signals.SIGKILL;
    return asked || this.#abort.signal.aborted ? 128 + constants.signals[this.#signal] : own;
  }

  [Symbol.dispose](): void {
    for (const signal of SIGNALS) process.off(signal, this.#onSignal);
  }

  readonly #onSignal = (signal: NodeJS.Signals): void => {
    const first = this.#signal === undefined;
    const now = performance.now();
    if (signal === this.#signal && now - this.#signalledAt < ECHO_MS) return;
    if (first) this.#signalledAt = now;
    this.#signal ??= signal as EndingSignal;
    if (first && this.#first !== undefined) this.#first();
    else this.force();
  };
}

import type { ComputeDriver, SandboxIntent } from "@openshell/drivers/driver.ts";
import type { Store } from "../../store/types.ts";

/** On which side of an effect a process dies: it did not happen, or it happened and nobody was told. */
export type Side = "before" | "after";

/** Effects whose names are kept for the description. */
const KEPT_EFFECTS = 20;

/** The rest of a dead process: nothing that it waits for ever comes. */
const never = <T>(): Promise<T> => new Promise<never>(() => {});

/**
 * A gateway process as far as the world can tell: its writes to the store and its operations of the driver, each of which
 * it may die at. Nothing that a dead process still does has any effect, and nothing answers it.
 *
 * Between the moment that an effect happened and the death right after it the process is doomed: others may see the
 * effect already, and the death can no longer be called off.
 */
export class MortalProcess {
  readonly #effects: string[] = [];
  readonly #death = Promise.withResolvers<void>();
  #state: "alive" | "doomed" | "dead" = "alive";
  #crash: { left: number; readonly side: Side } | undefined;

  get alive(): boolean {
    return this.#state === "alive";
  }

  get #dead(): boolean {
    return this.#state === "dead";
  }

  /** Resolves when the process has died. */
  get died(): Promise<void> {
    return this.#death.promise;
  }

  /** The process dies at the `step`-th effect from now, counted from 1. */
  dieAt(step: number, side: Side): void {
    this.#crash = { left: step, side };
  }

  /** Calls off a death that has not begun. False: it dies, or is dead already. */
  spare(): boolean {
    if (!this.alive) return false;
    this.#crash = undefined;
    return true;
  }

  /** The process ends now. */
  kill(): void {
    this.#state = "dead";
    this.#death.resolve();
  }

  /** Runs one effect, or dies at it. */
  async effect<T>(name: string, run: () => Promise<T>): Promise<T> {
    if (this.#dead) return await never();
    const crash = this.#crash;
    const fatal = crash !== undefined && --crash.left === 0;
    this.#effects.push(fatal ? `${name} (died ${crash.side} it)` : name);
    if (fatal && crash.side === "before") {
      this.kill();
      return await never();
    }
    if (fatal) this.#state = "doomed";
    try {
      const result = await run();
      if (!fatal && !this.#dead) return result;
    } catch (error) {
      // An effect that failed is one, too: a death after it comes all the same.
      if (!fatal && !this.#dead) throw error;
    }
    if (fatal) this.kill();
    return await never();
  }

  /** The store as this process sees it. */
  store(real: Store): Store {
    return Object.create(real, {
      write: {
        value: (...commands: Parameters<Store["write"]>) => this.effect("write", () => real.write(...commands)),
      },
      failed: { value: real.failed },
      [Symbol.asyncDispose]: { value: () => real[Symbol.asyncDispose]() },
      modifySandbox: {
        value: async (id: string, mutate: Parameters<Store["modifySandbox"]>[1]) => {
          if (this.#dead) return await never();
          const modify = () => real.modifySandbox(id, mutate);
          // One effect when something is written, none otherwise.
          const current = await real.sandboxes.byId(id);
          if (current === undefined || mutate(current) === undefined) return await modify();
          return await this.effect("modify sandbox", modify);
        },
      },
    });
  }

  /** The driver as this process sees it. */
  driver(real: ComputeDriver): ComputeDriver {
    return Object.create(real, {
      name: { value: real.name },
      create: { value: (intent: SandboxIntent) => this.effect("driver create", () => real.create(intent)) },
      start: { value: (intent: SandboxIntent) => this.effect("driver start", () => real.start(intent)) },
      stop: { value: (id: string) => this.effect("driver stop", () => real.stop(id)) },
      delete: { value: (id: string) => this.effect("driver delete", () => real.delete(id)) },
      setAside: { value: (id: string) => this.effect("driver set aside", () => real.setAside(id)) },
      watch: { value: (signal: AbortSignal) => real.watch(signal) },
    });
  }

  /** Whether it lives, and its latest effects. */
  describe(): string {
    const latest = this.#effects.slice(-KEPT_EFFECTS).join(", ");
    return `process ${this.#state} after ${this.#effects.length} effects: ${latest}`;
  }
}

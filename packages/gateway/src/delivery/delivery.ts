import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdate,
  type ConfigUpdateResult,
  ConfigUpdateSchema,
  type Failure,
  type SupervisorDownlink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { Clock } from "@openshell/base";
import type { Bootstrap } from "../sessions/backend.ts";
import { DONE } from "../sessions/reader.ts";
import { isApplied } from "../sessions/session.ts";
import { ACK_TIMEOUT_MS, BUILD_RETRY_FIRST_MS, BUILD_RETRY_LAST_MS } from "./limits.ts";
import type { Snapshot } from "./snapshot.ts";

/** What became of one delivered component. */
export interface DeliveryOutcome {
  readonly component: "config" | "environment";
  readonly applied: boolean;
  /** Revision that was sent. */
  readonly revision: string;
  /** Policy version of a config; 0 for an environment. */
  readonly policyVersion: number;
  readonly outcome: ConfigApplyOutcome;
  readonly failure: Failure | undefined;
}

export interface DeliveryDeps {
  readonly clock: Clock;
  /** Complete, from one read of the store. */
  readonly build: () => Promise<Snapshot>;
  /** Stores the outcome; resolves when it is durable. Waiters are released after that. */
  readonly record: (outcome: DeliveryOutcome) => Promise<void>;
  readonly send: (message: SupervisorDownlink["message"]) => boolean;
  /** Ends the session: its successor gets everything anew. */
  readonly fail: (error: unknown) => void;
  readonly onBuildError: (error: unknown) => void;
}

interface InFlight {
  readonly updateId: string;
  readonly sequence: bigint;
  readonly revision: string;
  readonly policyVersion: number;
  readonly answered: AbortController;
}

interface ComponentState {
  sequence: bigint;
  acknowledged: string;
  inFlight: InFlight | undefined;
  /** Something newer waits for the answer to what is in flight. */
  again: boolean;
  /** Held by the supervisor until its counterpart arrives. */
  staged: boolean;
  /** Revision that was refused: not sent again before something changes or the reconcile asks. */
  refused: string | undefined;
}

type ComponentName = "config" | "environment";
type Waiter = { readonly version: number; readonly resolve: (result: ApplyResult) => void };

/** How a wait for a policy version ended. `unknown`: no answer in time, or the session ended first. */
export type ApplyResult = "applied" | "refused" | "unknown";

/**
 * Brings changes to one supervisor session. Changes only mark the session dirty; what is sent is always the complete newest
 * snapshot of a component, one in flight a component, and nothing when the supervisor has it already.
 */
export class SessionDelivery {
  readonly #deps: DeliveryDeps;
  readonly #state: Readonly<Record<ComponentName, ComponentState>>;
  readonly #waiters = new Set<Waiter>();
  readonly #ended = new AbortController();
  #policyVersion: number;
  #bootstrapped = false;
  #dirty = false;
  #retryRefused = false;
  #pumping = false;

  constructor(bootstrap: Bootstrap, deps: DeliveryDeps) {
    this.#deps = deps;
    this.#policyVersion = bootstrap.config.policyVersion;
    const initial = (acknowledged: string): ComponentState => ({
      sequence: 0n,
      acknowledged,
      inFlight: undefined,
      again: false,
      staged: false,
      refused: undefined,
    });
    this.#state = {
      config: initial(bootstrap.config.configRevision),
      environment: initial(bootstrap.environment.providerRevision),
    };
  }

  /** The bootstrap was applied: what changed since it was built is sent now. */
  bootstrapDone(): void {
    this.#bootstrapped = true;
    void this.#pump();
  }

  /** Something that this sandbox's configuration is made of may have changed. */
  markDirty(): void {
    this.#dirty = true;
    void this.#pump();
  }

  /** As `markDirty`, and refused revisions are tried again. */
  reconcile(): void {
    this.#retryRefused = true;
    this.markDirty();
  }

  /** Policy version that the supervisor enforces. */
  get policyVersion(): number {
    return this.#policyVersion;
  }

  /** Resolves when the outcome of this policy version, or of a later one, is recorded. */
  whenApplied(version: number, limitMs: number): Promise<ApplyResult> {
    if (this.#ended.signal.aborted) return Promise.resolve("unknown");
    if (this.#policyVersion >= version) return Promise.resolve("applied");
    const { promise, resolve } = Promise.withResolvers<ApplyResult>();
    const waiter: Waiter = { version, resolve };
    this.#waiters.add(waiter);
    const timer = new AbortController();
    this.#deps.clock
      .sleep(limitMs, { signal: timer.signal, unref: true })
      .then(() => resolve("unknown"))
      .catch(() => {});
    return promise.finally(() => {
      timer.abort(DONE);
      this.#waiters.delete(waiter);
    });
  }

  /** An answer of the supervisor. Answers to something else are ignored: they are late. */
  async result(message: ConfigUpdateResult): Promise<void> {
    const component: ComponentName | undefined =
      message.component === ConfigComponent.SANDBOX_CONFIG
        ? "config"
        : message.component === ConfigComponent.PROVIDER_ENVIRONMENT
          ? "environment"
          : undefined;
    if (component === undefined || message.result === undefined) return;
    const state = this.#state[component];
    const sent = state.inFlight;
    if (sent === undefined || sent.updateId !== message.updateId || sent.sequence !== message.sequence) return;
    const { outcome, appliedRevision, failure } = message.result;
    const applied = isApplied(outcome) && appliedRevision === sent.revision;
    const staged = outcome === ConfigApplyOutcome.AWAITING_COMPONENT;
    if (!staged) {
      const { revision, policyVersion } = sent;
      // Still in flight until this is durable, so that nothing counts an acknowledgement that could be lost.
      await this.#deps.record({ component, applied, revision, policyVersion, outcome, failure });
    }
    if (state.inFlight !== sent) return;
    state.inFlight = undefined;
    sent.answered.abort();
    state.staged = staged;
    if (state.again) {
      state.again = false;
      this.#dirty = true;
    }
    if (applied) {
      state.acknowledged = sent.revision;
      state.refused = undefined;
      const other = this.#state[component === "config" ? "environment" : "config"];
      // The supervisor may now take what it held back; sending it again tells.
      if (other.staged) {
        other.staged = false;
        this.#dirty = true;
      }
    } else if (!staged) state.refused = sent.revision;
    if (component === "config" && !staged) {
      if (applied) this.#policyVersion = sent.policyVersion;
      this.#release(sent.policyVersion, applied ? "applied" : "refused");
    }
    void this.#pump();
  }

  /** The session is over. */
  close(): void {
    this.#ended.abort();
    for (const waiter of this.#waiters) waiter.resolve("unknown");
  }

  #release(version: number, result: ApplyResult): void {
    for (const waiter of [...this.#waiters]) if (waiter.version <= version) waiter.resolve(result);
  }

  async #pump(): Promise<void> {
    if (this.#pumping || !this.#bootstrapped) return;
    this.#pumping = true;
    let wait = BUILD_RETRY_FIRST_MS;
    while (this.#dirty && !this.#ended.signal.aborted) {
      this.#dirty = false;
      try {
        this.#sendChanged(await this.#deps.build());
        wait = BUILD_RETRY_FIRST_MS;
      } catch (error) {
        if (this.#ended.signal.aborted) break;
        this.#deps.onBuildError(error);
        this.#dirty = true;
        await this.#deps.clock.sleep(wait, { signal: this.#ended.signal, unref: true }).catch(() => {});
        wait = Math.min(wait * 2, BUILD_RETRY_LAST_MS);
      }
    }
    this.#pumping = false;
  }

  /** Secrets go first: a policy that refers to a value never arrives long before it. */
  #sendChanged({ config, providerRevision, environment }: Snapshot): void {
    if (this.#ended.signal.aborted) return;
    if (this.#retryRefused) {
      this.#retryRefused = false;
      for (const state of Object.values(this.#state)) state.refused = undefined;
    }
    this.#sendOne("environment", providerRevision, 0, () => ({ case: "providerEnvironment", value: environment() }));
    this.#sendOne("config", config.configRevision, config.policyVersion, () => ({
      case: "sandboxConfig",
      value: config,
    }));
  }

  #sendOne(
    name: ComponentName,
    revision: string,
    policyVersion: number,
    component: () => ConfigUpdate["component"],
  ): void {
    const state = this.#state[name];
    if (state.inFlight !== undefined) {
      // Latest wins: a newer snapshot is built when the answer is there.
      if (state.inFlight.revision !== revision) state.again = true;
      return;
    }
    if (state.acknowledged === revision || state.refused === revision) {
      // A change back to what is in force needs no delivery, but whoever waits for it is answered.
      if (name === "config" && state.acknowledged === revision) this.#release(policyVersion, "applied");
      return;
    }
    const value = component();
    state.sequence += 1n;
    const answered = new AbortController();
    const sent: InFlight = { updateId: randomUUID(), sequence: state.sequence, revision, policyVersion, answered };
    state.inFlight = sent;
    const { updateId, sequence } = sent;
    this.#deps.send({
      case: "update",
      value: create(ConfigUpdateSchema, { updateId, sequence, component: value }),
    });
    void this.#watchAnswer(state, sent);
  }

  async #watchAnswer(state: ComponentState, sent: InFlight): Promise<void> {
    const signal = AbortSignal.any([this.#ended.signal, sent.answered.signal]);
    try {
      await this.#deps.clock.sleep(ACK_TIMEOUT_MS, { signal, unref: true });
    } catch {
      return;
    }
    if (state.inFlight === sent) this.#deps.fail(new Error(`no answer to an update within ${ACK_TIMEOUT_MS / 1000} s`));
  }
}

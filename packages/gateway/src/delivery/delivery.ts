import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type ComponentResult,
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdate,
  type ConfigUpdateResult,
  ConfigUpdateSchema,
  type Failure,
  type SandboxConfig,
  type SupervisorDownlink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { Clock } from "@openshell/base";
import type { AppliedComponents, Bootstrap } from "../sessions/backend.ts";
import { failure } from "../sessions/failure.ts";
import { MAX_CONFIG_BYTES } from "../sessions/limits.ts";
import { DONE } from "../sessions/reader.ts";
import { ACK_TIMEOUT_MS, BUILD_RETRY_FIRST_MS, BUILD_RETRY_LAST_MS } from "./limits.ts";
import { isInForce, type Verdict, verdictOf } from "./outcome.ts";
import { fits } from "./size.ts";
import { pairing, type Snapshot } from "./snapshot.ts";
import { undeliverable } from "./undeliverable.ts";

export type ComponentName = "config" | "environment";

/** What a delivered configuration consists of, without the policy itself. */
export type DeliveredFacts = { readonly settingsRevision: bigint } & Pick<
  SandboxConfig,
  | "configRevision"
  | "policyVersion"
  | "policyHash"
  | "policySource"
  | "globalPolicyVersion"
  | "providerRevision"
  | "attachmentEpoch"
>;

/** What became of one delivered component. */
export interface DeliveryOutcome {
  readonly component: ComponentName;
  /** Judgement of the answer; a staged component has no outcome yet. */
  readonly verdict: Exclude<Verdict, "staged">;
  /** In force as it was sent. */
  readonly applied: boolean;
  /** In force now and not before: something to tell. */
  readonly news: boolean;
  readonly facts: DeliveredFacts;
  /** What the supervisor answered; UNSPECIFIED when it was never sent. */
  readonly outcome: ConfigApplyOutcome;
  readonly failure: Failure | undefined;
}

/** Whom a change concerns: one sandbox alone, or this one among many. */
export type Lane = "sandbox" | "fanout";

export interface DeliveryDeps {
  readonly clock: Clock;
  /** Stores the outcomes of one moment, together; resolves when they are durable. */
  readonly record: (outcomes: readonly DeliveryOutcome[]) => Promise<void>;
  readonly send: (message: SupervisorDownlink["message"]) => boolean;
  /** Ends the session: its successor gets everything anew. */
  readonly fail: (error: unknown) => void;
  /** A snapshot could not be built, or an outcome not be stored; it is tried again. `first`: it had gone well before. */
  readonly onError: (error: unknown, first: boolean) => void;
  /** Calls `late` when an answer has not come in time, unless what it returns is called before. */
  readonly limitAnswer: (late: () => void) => () => void;
  /** Asks for a build in turn. May be asked again while the turn has not come. */
  readonly request: (delivery: SessionDelivery, lane: Lane) => void;
}

interface InFlight {
  readonly updateId: string;
  readonly sequence: bigint;
  readonly key: string;
  readonly revision: string;
  readonly facts: DeliveredFacts;
  /** Calls the limit of its answer off. */
  inTime: () => void;
  /** The answer is there, its outcome is being stored. */
  answered: boolean;
}

/** What became of something that was sent. */
interface Answer {
  readonly name: ComponentName;
  readonly sent: InFlight;
  readonly verdict: Verdict;
  readonly outcome: ConfigApplyOutcome;
  readonly failure: Failure | undefined;
}

interface ComponentState {
  sequence: bigint;
  /** Identity of what was acknowledged last; a further delivery of the same is left out. */
  acknowledged: string;
  /** Identity that was refused: not sent again before something changes or the reconcile asks. */
  refused: string;
  /** What the supervisor holds until its counterpart is there. */
  staged: InFlight | undefined;
  /** Pairing identity of what was acknowledged. */
  acknowledgedPair: string;
  /** Acknowledged, but in force only in part: the reconcile asks for the rest. */
  degraded: boolean;
  /** Sent next time, whether it was acknowledged or not. */
  again: boolean;
  inFlight: InFlight | undefined;
}

/**
 * Brings changes to one supervisor session. A change only marks the session dirty; what is sent, in its turn, is always
 * the complete newest snapshot, one component in flight each, and nothing that the supervisor has already. What changes
 * while an answer is awaited is one further build, however often it changed.
 *
 * An update stays in flight until its outcome is durable, so that nothing counts an acknowledgement that could be lost.
 */
export class SessionDelivery {
  readonly sandboxId: string;
  readonly #deps: DeliveryDeps;
  readonly #config: ComponentState;
  readonly #environment: ComponentState;
  #workspace: string;
  #providers: readonly string[];
  #bootstrapped = false;
  #closed = false;
  #dirty: Lane | undefined;
  #building = false;
  #reconciling = false;
  /** Pairing identities for which a counterpart was built again, and a staged half sent again: once each. */
  #counterpartFor = "";
  #resentFor = "";
  #last: Snapshot | undefined;
  #retryMs = BUILD_RETRY_FIRST_MS;
  #retry: AbortController | undefined;

  constructor(sandboxId: string, bootstrap: Bootstrap, deps: DeliveryDeps) {
    this.sandboxId = sandboxId;
    this.#deps = deps;
    this.#workspace = bootstrap.workspace;
    this.#providers = bootstrap.providers;
    const pair = pairing(bootstrap.config);
    this.#config = initial(bootstrap.config.configRevision, pair);
    this.#environment = initial(pair, pair);
  }

  /** Something is to be sent, built or answered. */
  get busy(): boolean {
    return this.#dirty !== undefined || this.#building || this.waiting;
  }

  /** An answer, or the end of a wait after a failure, is awaited. */
  get waiting(): boolean {
    return this.#config.inFlight !== undefined || this.#environment.inFlight !== undefined || this.#retry !== undefined;
  }

  /** Whether a change of a workspace, or of one of its providers, may concern what this sandbox has or is about to get. */
  concerns(workspace: string, provider?: string): boolean {
    if (this.#building || !this.#bootstrapped) return true;
    return workspace === this.#workspace && (provider === undefined || this.#providers.includes(provider));
  }

  /** The bootstrap was answered, and what came of it is durable: what changed since it was read is sent now. */
  bootstrapDone(results?: AppliedComponents): void {
    this.#bootstrapped = true;
    if (results !== undefined) {
      const { config, environment } = results;
      if (!isInForce(config.outcome)) refuse(this.#config, this.#config.acknowledged);
      if (!isInForce(environment.outcome)) refuse(this.#environment, this.#environment.acknowledged);
      this.#config.degraded = config.outcome === ConfigApplyOutcome.DEGRADED;
    }
    this.#request();
  }

  /** Something that this sandbox's configuration is made of may have changed. Ends a wait after a failure. */
  markDirty(lane: Lane = "sandbox"): void {
    if (this.#dirty !== "sandbox") this.#dirty = lane;
    this.#retry?.abort(DONE);
    this.#request();
  }

  /** As `markDirty`, and what was refused, staged or taken up in part is tried again. */
  reconcile(lane: Lane = "sandbox"): void {
    this.#reconciling = true;
    // A wait after a failure is no news' business: the reconcile does not shorten it.
    if (this.#dirty !== "sandbox") this.#dirty = lane;
    this.#request();
  }

  /** Whether it is this session's turn if it is given one. */
  get ready(): boolean {
    return this.#dirty !== undefined && this.#bootstrapped && !this.#closed && !this.#building && !this.waiting;
  }

  /** Its turn has come: builds and sends. Never rejects. */
  async turn(build: () => Promise<Snapshot>): Promise<void> {
    if (!this.ready) return;
    const lane = this.#dirty!;
    this.#dirty = undefined;
    this.#building = true;
    try {
      const snapshot = await build();
      if (this.#closed) return;
      await this.#offer(snapshot);
      this.#retryMs = BUILD_RETRY_FIRST_MS;
    } catch (error) {
      this.#failed(error, lane);
    } finally {
      this.#building = false;
      this.#request();
    }
  }

  /** An answer of the supervisor. Answers to something else are late, and ignored. */
  async result(message: ConfigUpdateResult): Promise<void> {
    const name = componentName(message.component);
    if (name === undefined || message.result === undefined || this.#closed) return;
    const state = this.#state(name);
    const sent = state.inFlight;
    if (sent === undefined || sent.answered || sent.updateId !== message.updateId || sent.sequence !== message.sequence)
      return;
    sent.answered = true;
    sent.inTime();
    const answers = [answerTo(name, sent, message.result), ...this.#counterpart(name, sent, message.counterpart)];
    const outcomes = this.#outcomesOf(answers);
    try {
      // What is staged only has nothing to wait for: the next answer finds it settled.
      if (outcomes.length > 0) await this.#deps.record(outcomes);
    } catch (error) {
      // Nothing is counted: the supervisor says again what it has when it is sent again.
      state.inFlight = undefined;
      this.#failed(error, "sandbox");
      return;
    }
    if (this.#closed) return;
    state.inFlight = undefined;
    if (message.result.failure?.code === NOTHING_IN_FORCE) {
      this.#deps.fail(new Error("the supervisor has no configuration: its session begins anew"));
      return;
    }
    for (const answer of answers) this.#settle(answer);
    this.#pair();
    this.#release();
    this.#request();
  }

  /** What the answer to one half says of the other one, which waited for it. */
  #counterpart(name: ComponentName, sent: InFlight, result: ComponentResult | undefined): readonly Answer[] {
    const other = name === "config" ? "environment" : "config";
    const { staged } = this.#state(other);
    if (result === undefined || staged === undefined || pairing(staged.facts) !== pairing(sent.facts)) return [];
    return [answerTo(other, staged, result)];
  }

  /** The session is over. */
  close(): void {
    this.#closed = true;
    this.#dirty = undefined;
    this.#last = undefined;
    for (const { inFlight } of [this.#config, this.#environment]) inFlight?.inTime();
    this.#retry?.abort(DONE);
  }

  /** What was built last is kept only while a half of it may be sent again. */
  #release(): void {
    const open = [this.#config, this.#environment].some(
      ({ inFlight, staged }) => inFlight !== undefined || staged !== undefined,
    );
    if (!open) this.#last = undefined;
  }

  #state(name: ComponentName): ComponentState {
    return name === "config" ? this.#config : this.#environment;
  }

  #request(): void {
    if (this.ready) this.#deps.request(this, this.#dirty!);
  }

  #settle({ name, sent, verdict, outcome }: Answer): void {
    const state = this.#state(name);
    state.staged = undefined;
    if (verdict === "acknowledged") {
      const pair = pairing(sent.facts);
      state.acknowledged = sent.key;
      state.acknowledgedPair = pair;
      state.refused = "";
      state.degraded = outcome === ConfigApplyOutcome.DEGRADED;
      if (this.#counterpartFor !== pair) this.#counterpartFor = "";
      if (this.#resentFor !== pair) this.#resentFor = "";
      if (name === "config") this.#configInForce(pair);
    } else if (verdict === "staged") {
      state.staged = sent;
    } else {
      refuse(state, sent.key);
    }
  }

  /**
   * A configuration came into force: with it the supervisor has the environment of its pair, and has forgotten one that waited for
   * another. What is not known to be in force of it is sent once more.
   */
  #configInForce(pair: string): void {
    const environment = this.#environment;
    const { staged } = environment;
    if (staged !== undefined && pairing(staged.facts) === pair) return;
    environment.staged = undefined;
    if (environment.inFlight !== undefined || environment.acknowledgedPair === pair) return;
    environment.again = true;
    this.#dirty ??= "sandbox";
  }

  /**
   * One half that waits for the other: the other is built again, and once it is acknowledged the first is sent again. Each
   * once for a pair, so that two halves that never meet do not call each other for ever. Both waiting is the reconcile's.
   */
  #pair(): void {
    const config = this.#config;
    const environment = this.#environment;
    if (config.inFlight !== undefined || environment.inFlight !== undefined) return;
    const staged = config.staged ?? environment.staged;
    if (staged === undefined || (config.staged !== undefined && environment.staged !== undefined)) return;
    const [half, other] = config.staged === undefined ? [environment, config] : [config, environment];
    const pair = pairing(staged.facts);
    if (other.acknowledgedPair === pair) {
      if (this.#resentFor === pair) return;
      this.#resentFor = pair;
      half.again = true;
      if (this.#resend(half, pair)) return;
    } else {
      if (this.#counterpartFor === pair) return;
      this.#counterpartFor = pair;
      other.again = true;
    }
    this.#dirty ??= "sandbox";
  }

  /** Sends a half as it was built last, unless anything may have changed since. False: it has to be built. */
  #resend(half: ComponentState, pair: string): boolean {
    const last = this.#last;
    if (last === undefined || this.#dirty !== undefined || pairing(last.config) !== pair) return false;
    const name = half === this.#config ? "config" : "environment";
    // What is too large was never sent, so it is not sent again: this waits for nothing.
    this.#offerOne(name, last).catch((error: unknown) => {
      half.again = true;
      this.#failed(error, "sandbox");
    });
    return true;
  }

  /** Secrets go first: a policy that refers to a value never arrives long before it. */
  async #offer(snapshot: Snapshot): Promise<void> {
    this.#last = snapshot;
    this.#workspace = snapshot.workspace;
    this.#providers = snapshot.providers;
    if (this.#reconciling) {
      this.#reconciling = false;
      this.#counterpartFor = "";
      this.#resentFor = "";
      for (const state of [this.#config, this.#environment]) {
        state.refused = "";
        state.staged = undefined;
        if (state.degraded) state.again = true;
      }
    }
    await this.#offerOne("environment", snapshot);
    await this.#offerOne("config", snapshot);
    this.#release();
  }

  async #offerOne(name: ComponentName, { config, settingsRevision, environment }: Snapshot): Promise<void> {
    const { configRevision, providerRevision } = config;
    const [key, revision] = name === "config" ? [configRevision, configRevision] : [pairing(config), providerRevision];
    const state = this.#state(name);
    const known = key === state.acknowledged || key === state.refused || key === state.staged?.key;
    if (this.#closed || (known && !state.again)) return;
    state.again = false;
    const sequence = state.sequence + 1n;
    const updateId = randomUUID();
    const component: ConfigUpdate["component"] =
      name === "config"
        ? { case: "sandboxConfig", value: config }
        : { case: "providerEnvironment", value: environment() };
    const value = create(ConfigUpdateSchema, { updateId, sequence, component });
    const facts = factsOf(config, settingsRevision);
    const sent: InFlight = { updateId, sequence, key, revision, facts, inTime: () => {}, answered: false };
    if (!fits(ConfigUpdateSchema, value, MAX_CONFIG_BYTES)) {
      const reason = failure("payload_too_large", `the ${name} exceeds ${MAX_CONFIG_BYTES} bytes`, {
        next: "Make the policy or the providers' settings smaller",
      });
      const outcome = ConfigApplyOutcome.UNSPECIFIED;
      await this.#deps.record(this.#outcomesOf([{ name, sent, verdict: "rejected", outcome, failure: reason }]));
      state.refused = key;
      return;
    }
    state.sequence = sequence;
    state.inFlight = sent;
    this.#deps.send({ case: "update", value });
    sent.inTime = this.#deps.limitAnswer(() => this.#late(state, sent));
  }

  #outcomesOf(answers: readonly Answer[]): readonly DeliveryOutcome[] {
    return answers.flatMap((answer) => this.#outcomeOf(answer) ?? []);
  }

  #outcomeOf({ name: component, sent, verdict, outcome, failure: reason }: Answer): DeliveryOutcome | undefined {
    if (verdict === "staged") return undefined;
    const { facts } = sent;
    const state = this.#state(component);
    const applied = verdict === "acknowledged" && isInForce(outcome);
    const other = state.acknowledged !== sent.key || state.degraded !== (outcome === ConfigApplyOutcome.DEGRADED);
    const news = applied && other;
    const contradiction = verdict === "invalid" ? CONTRADICTION : undefined;
    return { component, verdict, applied, news, facts, outcome, failure: contradiction ?? reason };
  }

  #failed(error: unknown, lane: Lane): void {
    if (this.#closed) return;
    this.#deps.onError(error, this.#retryMs === BUILD_RETRY_FIRST_MS);
    // It is shown as not current: the answer to its next delivery says that it is again, also when it is what it was.
    const shown = undeliverable(error);
    if (shown !== undefined) this.#state(shown).again = true;
    this.#dirty ??= lane;
    const retry = new AbortController();
    this.#retry = retry;
    const over = (): void => {
      if (this.#retry !== retry) return;
      this.#retry = undefined;
      this.#request();
    };
    this.#deps.clock.sleep(this.#retryMs, { signal: retry.signal, unref: true }).then(over, over);
    this.#retryMs = Math.min(this.#retryMs * 2, BUILD_RETRY_LAST_MS);
  }

  #late(state: ComponentState, sent: InFlight): void {
    if (state.inFlight !== sent || sent.answered) return;
    this.#deps.fail(new Error(`no answer to an update within ${ACK_TIMEOUT_MS / 1000} s`));
  }
}

/** A supervisor that never had a configuration in force takes a bootstrap only. */
const NOTHING_IN_FORCE = "apply_unavailable";

const CONTRADICTION = failure("revision_mismatch", "the outcome contradicts the revision that is in force");

function answerTo(name: ComponentName, sent: InFlight, result: ComponentResult): Answer {
  const { outcome, failure: reason } = result;
  return { name, sent, verdict: verdictOf(result, sent.revision), outcome, failure: reason };
}

/** What was in force before may be so no more: going back to it is a delivery like any other. */
function refuse(state: ComponentState, key: string): void {
  state.acknowledged = "";
  state.acknowledgedPair = "";
  state.refused = key;
}

function factsOf(config: SandboxConfig, settingsRevision: bigint): DeliveredFacts {
  const { configRevision, policyVersion, policyHash, policySource, globalPolicyVersion } = config;
  const { providerRevision, attachmentEpoch } = config;
  return {
    configRevision,
    policyVersion,
    policyHash,
    policySource,
    globalPolicyVersion,
    providerRevision,
    attachmentEpoch,
    settingsRevision,
  };
}

function initial(acknowledged: string, pair: string): ComponentState {
  return {
    sequence: 0n,
    acknowledged,
    refused: "",
    staged: undefined,
    acknowledgedPair: pair,
    degraded: false,
    again: false,
    inFlight: undefined,
  };
}

function componentName(component: ConfigComponent): ComponentName | undefined {
  if (component === ConfigComponent.SANDBOX_CONFIG) return "config";
  return component === ConfigComponent.PROVIDER_ENVIRONMENT ? "environment" : undefined;
}

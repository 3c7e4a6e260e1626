import { create, equals } from "@bufbuild/protobuf";
import {
  FailureSchema,
  type ReadinessObservation,
  ReadinessObservationSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { ConfigurationProblem } from "../config/compile.ts";
import { FAILURE_CHARACTERS } from "../config/results.ts";

/** What is in force in one sandbox. Each fact is set by the code that does the work, when it is done. */
export interface ReadinessFacts {
  readonly attachmentEpoch: string;
  readonly providerRevision: string;
  readonly configRevision: string;
  readonly policyHash: string;
  /** Requests get the credentials of `providerRevision`. */
  readonly credentialsInstalled: boolean;
  /** The policy of `policyHash` decides. */
  readonly policyActive: boolean;
  /** Processes that start now see the names of `providerRevision`. */
  readonly launchEnvironmentInstalled: boolean;
  /** The main process runs. */
  readonly processRunning: boolean;
  /** Why something is not in force. */
  readonly problem: ConfigurationProblem | undefined;
}

const NOTHING: ReadinessFacts = {
  attachmentEpoch: "",
  providerRevision: "",
  configRevision: "",
  policyHash: "",
  credentialsInstalled: false,
  policyActive: false,
  launchEnvironmentInstalled: false,
  processRunning: false,
  problem: undefined,
};

/** Who observes, and where to. `send` is false when the observation is lost. */
export interface Observer {
  readonly sessionId: string;
  /** Identity of this supervisor object: that of its main process while one runs. */
  readonly instanceId: string;
  send(observation: ReadinessObservation): boolean;
}

/**
 * Evidence of what one sandbox has in force, told to its session when it changes. Facts are evidence, never wishes: start-up
 * sets them through the same code as a live change, so that the first look after it finds nothing to do.
 */
export class ReadinessTracker {
  #facts = NOTHING;
  #observer: Observer | undefined;
  #sequence = 0n;
  #told: ReadinessObservation | undefined;
  #scheduled = false;

  get facts(): ReadinessFacts {
    return this.#facts;
  }

  /** The last observation reached the session, so a heartbeat may renew it. */
  get vouched(): boolean {
    return this.#observer !== undefined && this.#told !== undefined && !this.#scheduled;
  }

  /** Facts that changed together are told together. */
  set(facts: Partial<ReadinessFacts>): void {
    this.#facts = { ...this.#facts, ...facts };
    this.#schedule();
  }

  /** Observations of a session that was accepted; sequences start at 1. Everything in force is told at once. */
  observe(observer: Observer): void {
    this.#observer = observer;
    this.#sequence = 0n;
    this.#told = undefined;
    this.#tell();
  }

  /** The session is over. A later one that observes already stays. */
  unobserve(sessionId: string): void {
    if (this.#observer?.sessionId !== sessionId) return;
    this.#observer = undefined;
    this.#told = undefined;
  }

  #schedule(): void {
    if (this.#observer === undefined || this.#scheduled) return;
    this.#scheduled = true;
    queueMicrotask(() => {
      this.#scheduled = false;
      this.#tell();
    });
  }

  #tell(): void {
    const observer = this.#observer;
    if (observer === undefined) return;
    const { processRunning, problem, ...facts } = this.#facts;
    const failure =
      problem &&
      create(FailureSchema, {
        code: problem.code,
        message: problem.message.slice(0, FAILURE_CHARACTERS),
        next: problem.next,
      });
    const observation = create(ReadinessObservationSchema, {
      ...facts,
      sessionId: observer.sessionId,
      sequence: this.#sequence,
      processInstanceId: processRunning ? observer.instanceId : "",
      ...(failure === undefined ? {} : { failure }),
    });
    if (this.#told !== undefined && equals(ReadinessObservationSchema, this.#told, observation)) return;
    this.#sequence += 1n;
    observation.sequence = this.#sequence;
    this.#told = observer.send(observation) ? observation : undefined;
  }
}

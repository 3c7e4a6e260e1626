import type { ReadinessObservation } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { Clock } from "@openshell/base";
import { OBSERVATION_TTL_MS } from "./limits.ts";

/** Who reported. */
export interface Reporter {
  readonly sandboxId: string;
  readonly sessionId: string;
  readonly instanceId: string;
}

/** The last evidence of one session. */
export interface Evidence {
  readonly observation: ReadinessObservation;
  /** The supervisor object that gave it. */
  readonly instanceId: string;
  /** Wall clock, when it was given or renewed. */
  readonly observedAt: number;
  /** Older than its validity. */
  readonly expired: boolean;
}

interface Stored {
  readonly observation: ReadinessObservation;
  readonly instanceId: string;
  observedAt: number;
  /** Monotonic. */
  validUntil: number;
}

/**
 * What supervisors have last shown of each sandbox. In memory only: evidence dies with its session, and a gateway that
 * restarts is shown everything again.
 */
export class Observations {
  readonly #clock: Clock;
  readonly #bySandbox = new Map<string, Stored>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes evidence of the current session. Older or repeated sequences change nothing and renew nothing: false. */
  accept({ sandboxId, sessionId, instanceId }: Reporter, observation: ReadinessObservation): boolean {
    if (observation.sessionId !== sessionId || observation.sequence === 0n) return false;
    const last = this.#bySandbox.get(sandboxId);
    if (last?.observation.sessionId === sessionId && last.observation.sequence >= observation.sequence) return false;
    const validUntil = this.#clock.monotonic() + OBSERVATION_TTL_MS;
    this.#bySandbox.set(sandboxId, { observation, instanceId, observedAt: this.#clock.now(), validUntil });
    return true;
  }

  /** A host says that what it showed of these sandboxes still holds. */
  renew(sandboxIds: Iterable<string>): void {
    const validUntil = this.#clock.monotonic() + OBSERVATION_TTL_MS;
    const observedAt = this.#clock.now();
    for (const id of sandboxIds) {
      const stored = this.#bySandbox.get(id);
      if (stored !== undefined) Object.assign(stored, { validUntil, observedAt });
    }
  }

  /** The session is over: what it showed is worth nothing. Harmless for a session that was replaced. */
  forget({ sandboxId, sessionId }: Pick<Reporter, "sandboxId" | "sessionId">): void {
    if (this.#bySandbox.get(sandboxId)?.observation.sessionId === sessionId) this.#bySandbox.delete(sandboxId);
  }

  of(sandboxId: string): Evidence | undefined {
    const stored = this.#bySandbox.get(sandboxId);
    if (stored === undefined) return undefined;
    const { observation, instanceId, observedAt, validUntil } = stored;
    return { observation, instanceId, observedAt, expired: this.#clock.monotonic() >= validUntil };
  }
}

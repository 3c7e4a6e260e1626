import type { SessionRegistry } from "../sessions/registry.ts";
import type { SupervisorSession } from "../sessions/session.ts";
import type { DeliveryScheduler, Scope } from "./scheduler.ts";

/**
 * Tells sessions that a change was stored. Called after its commit, waits for nothing and loses nothing: a running sandbox
 * is sent what changed, a start that waits for a better configuration looks again, and one that is reading its first
 * configuration finds that it was overtaken.
 */
export class Publisher {
  readonly #sessions: SessionRegistry;
  readonly #scheduler: DeliveryScheduler;

  constructor(sessions: SessionRegistry, scheduler: DeliveryScheduler) {
    this.#sessions = sessions;
    this.#scheduler = scheduler;
  }

  publish(scope: Scope): void {
    const one = scope.kind === "sandbox" ? this.#sessions.get(scope.sandboxId) : undefined;
    this.#scheduler.publish(scope, one?.delivery);
    const concerned = scope.kind === "sandbox" ? (one === undefined ? [] : [one]) : [...this.#sessions.all];
    for (const session of concerned) wake(session);
  }

  /** A change of exactly these sandboxes; of many, it stands back behind changes of one. */
  publishTo(sandboxIds: Iterable<string>): void {
    const ids = [...sandboxIds];
    if (ids.length === 1) {
      this.publish({ kind: "sandbox", sandboxId: ids[0]! });
      return;
    }
    const sessions = ids.flatMap((id) => this.#sessions.get(id) ?? []);
    this.#scheduler.publishTo(sessions.flatMap(({ delivery }) => delivery ?? []));
    for (const session of sessions) wake(session);
  }
}

function wake(session: SupervisorSession): void {
  if (session.state === "held") session.configurationChanged();
}

import { type Clock, LogField } from "@openshell/base";
import type { Logger } from "pino";
import type { SandboxFeed, SandboxFeeds } from "../compute/sandbox-feed.ts";
import type { DeliveryStats } from "../delivery/stats.ts";
import type { SupervisorSession } from "../sessions/session.ts";

export interface PollingWarningDeps {
  readonly clock: Clock;
  readonly log: Logger;
  readonly feeds: SandboxFeeds;
  readonly stats: DeliveryStats;
}

/** Tells of supervisors that poll: each session is counted, each start of a sandbox warned of once. */
export class PollingWarnings {
  readonly #deps: PollingWarningDeps;
  /** Generation that was warned of, by feed: forgotten with the sandbox. */
  readonly #warned = new WeakMap<SandboxFeed, bigint>();

  constructor(deps: PollingWarningDeps) {
    this.#deps = deps;
  }

  accepted({ sandboxId, generation, protocolRevision }: SupervisorSession): void {
    const { clock, log, feeds, stats } = this.#deps;
    stats.polling(protocolRevision);
    const feed = feeds.of(sandboxId);
    if (this.#warned.get(feed) === generation) return;
    this.#warned.set(feed, generation);
    const message =
      `the sandbox's supervisor was made by an older version (protocol revision ${protocolRevision}): ` +
      "changes reach it only when it asks for them. Recreate the sandbox, then they are pushed";
    log.warn({ [LogField.sandboxId]: sandboxId, protocol_revision: protocolRevision }, message);
    feed.addEvent({ type: "Warning", reason: "SupervisorOutdated", message }, clock.now());
  }
}

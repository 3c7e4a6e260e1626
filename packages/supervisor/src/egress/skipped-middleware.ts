import type { CompiledPolicy } from "@openshell/policy";
import type { EgressEvents } from "./events.ts";
import { finding } from "./findings.ts";
import type { Owner } from "./identify.ts";
import type { Target } from "./target.ts";

/** Destinations of one policy that are remembered as told; what comes after them is told each time. */
const TOLD = 1_024;

/**
 * Traffic that passes although a middleware selects it, since that may be left out and cannot run: told once for each
 * destination of a policy.
 */
export class SkippedMiddleware {
  readonly #events: EgressEvents;
  #policy: CompiledPolicy | undefined;
  readonly #told = new Set<string>();

  constructor(events: EgressEvents) {
    this.#events = events;
  }

  /** Call it for a target that `policy` allows. Free where no middleware selects its host. */
  tell(policy: CompiledPolicy, target: Target, owners: readonly Owner[]): void {
    const names = target.access.grants[0]?.skippedMiddlewares ?? [];
    if (names.length === 0) return;
    if (this.#policy !== policy) {
      this.#policy = policy;
      this.#told.clear();
    }
    const key = `${target.port} ${target.host}`;
    if (this.#told.has(key)) return;
    if (this.#told.size < TOLD) this.#told.add(key);
    const { description, ...rest } = finding("middlewareSkipped", target, owners, target.policy);
    this.#events.finding({ ...rest, description: `${description}: ${names.join(", ")}` });
  }
}

import { compilePolicy } from "@openshell/policy";
import { connections, type Figures, policyOf, requests } from "../support/decisions.ts";
import { serveJobs } from "./jobs.ts";

/** Decisions of the policy engine, in a process that compiled nothing before. */

export interface DecisionsJob {
  readonly endpoints: number;
  /** Of requests, each endpoint. */
  readonly rules: number;
}

export interface Decisions {
  /** Few hosts again and again: most answers are remembered. */
  readonly remembered: Figures;
  /** Far more hosts than are remembered: each question is answered from the index. */
  readonly connection: Figures;
  readonly request: Figures;
  readonly compileMs: number;
}

serveJobs(async ({ endpoints, rules }: DecisionsJob): Promise<Decisions> => {
  const startedAt = performance.now();
  const compiled = compilePolicy(policyOf(endpoints, rules));
  const compileMs = performance.now() - startedAt;
  return {
    compileMs,
    remembered: connections(compiled, endpoints, 200),
    connection: connections(compiled, endpoints, 50_000),
    request: requests(compiled, rules),
  };
});

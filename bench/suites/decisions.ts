import { BUDGET_NS } from "../support/decisions.ts";
import { judge } from "../support/report.ts";
import { type Stage, Worker } from "../support/stage.ts";
import type { Decisions, DecisionsJob } from "../workers/decisions.ts";

const ENDPOINTS = 100_000;
/** What the large policy is compared with: the cost must not grow with the number of endpoints. */
const FEW = 10;
const RULES = 5;

/** What one decision of the policy engine takes, without anything around it. */
export async function decisions(stage: Stage): Promise<void> {
  const ask = async (endpoints: number): Promise<Decisions> => {
    using worker = new Worker("decisions");
    return await worker.run({ endpoints, rules: RULES } satisfies DecisionsJob);
  };
  const small = await ask(FEW);
  const large = await ask(ENDPOINTS);
  const figures = [
    ["connection", "policy decision: connection, 100,000 endpoints, p99"],
    ["request", "policy decision: request, 100,000 endpoints, p99"],
  ] as const;
  for (const [kind, what] of figures) {
    const { p50, p99 } = large[kind];
    const details = kind === "connection" ? { "remembered p99": large.remembered.p99 / 1000 } : {};
    stage.report(
      judge(
        {
          id: `policy/decision-${kind}`,
          what,
          measured: p99 / 1000,
          unit: "µs",
          reference: { what: `${FEW} endpoints`, value: small[kind].p99 / 1000 },
          details: { p50: p50 / 1000, ...details, "compile ms": large.compileMs },
        },
        { text: "≤ 5 µs", atMost: BUDGET_NS / 1000 },
      ),
    );
  }
}

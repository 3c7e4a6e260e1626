/**
 * Cost of policy decisions: `node bench/policy.ts`. The budget is 5 µs p99 with 100,000 endpoints (docs/performance.md); the same
 * questions are asked of a small policy in the same run, since the cost must not grow with the number of rules.
 */
import { compilePolicy } from "@openshell/policy";
import { BUDGET_NS, connections, type Figures, policyOf, requests } from "./support/decisions.ts";

function show(name: string, figures: Figures): void {
  const verdict = figures.p99 <= BUDGET_NS ? "ok" : `over ${BUDGET_NS}`;
  console.log(`${name.padEnd(58)} p50 ${figures.p50} ns  p99 ${figures.p99} ns  mean ${figures.mean} ns  ${verdict}`);
  if (figures.p99 > BUDGET_NS) process.exitCode = 1;
}

for (const [endpoints, rules] of [
  [10, 5],
  [1000, 100],
  [100_000, 5],
] as const) {
  const started = performance.now();
  const compiled = compilePolicy(policyOf(endpoints, rules));
  console.log(`compile ${endpoints} endpoints: ${(performance.now() - started).toFixed(0)} ms`);
  show(`connect, ${endpoints} endpoints, 200 hosts in use`, connections(compiled, endpoints, 200));
  // Far more hosts than are remembered: each question is answered from the index.
  show(`connect, ${endpoints} endpoints, 50,000 hosts in use`, connections(compiled, endpoints, 50_000));
  show(`request, ${endpoints} endpoints, ${rules} rules each`, requests(compiled, rules));
}

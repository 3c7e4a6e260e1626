import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell } from "@openshell/api";
import { policyMessage, SCOPE } from "../../../tests/support/api.ts";
import { benchPolicy } from "../../support/origin.ts";
import { judge } from "../../support/report.ts";
import type { Simulation } from "../../support/simulation.ts";
import type { Stage } from "../../support/stage.ts";
import { summarise } from "../../support/statistics.ts";

const RESOURCE_EXHAUSTED = "gRPC status 8 ";
/** Whose changes are timed. */
export const OTHERS = 500;
/** Changes of the busy one, and of all others together. */
const BUSY_PER_SECOND = 100;
const OTHERS_PER_SECOND = 50;
const TURN_MS = 5000;
const WARM_UP = 200;
/** The budget. */
const MORE_MS = 50;
/** With and without the busy one by turns. */
const TURNS = 4;

/**
 * One sandbox that changes all the time, the first of `names`: what its changes cost those of others. `yardstick`: how many times
 * slower the machine is than that of the budgets.
 */
export async function busy(
  stage: Stage,
  simulation: Simulation,
  names: readonly string[],
  yardstick: () => Promise<number>,
): Promise<void> {
  const before = await yardstick();
  using client = simulation.client();
  using own = simulation.client();
  const [noisy, ...rest] = names;
  const others = rest.slice(0, OTHERS);
  const alone = others.length === rest.length;
  const policies = ["/one/**", "/two/**"].map((path) => policyMessage(benchPolicy(1, path)));
  const change = async (sandbox: string, policy: (typeof policies)[number], by = client): Promise<number> => {
    const begin = performance.now();
    await by.unary(OpenShell.method.updateConfig, { workspaceScope: SCOPE, sandbox, policy });
    return performance.now() - begin;
  };
  let refused = 0;
  let changed = 0;
  const calm: number[] = [];
  const beside: number[] = [];
  const noise: number[] = [];
  // Code is compiled for them.
  for (const name of others.slice(0, WARM_UP)) await change(name, policies[0]!);
  await simulation.collect();
  for (let turn = 0; turn < 2 * TURNS; turn += 1) {
    const loud = turn % 2 === 1;
    const end = new AbortController();
    const noisyOne = loud
      ? every(BUSY_PER_SECOND, end.signal, async (index) => {
          const policy = policyMessage(benchPolicy(1, `/busy/${turn}/${index}`));
          // On a machine that is too slow for so many the gateway refuses some: its queue of one sandbox is bounded.
          await change(noisy!, policy, own).then(
            (took) => noise.push(took),
            (error: unknown) => {
              if (!String(error).includes(RESOURCE_EXHAUSTED)) throw error;
              refused += 1;
            },
          );
        })
      : Promise.resolve();
    const times = loud ? beside : calm;
    const crowd = every(OTHERS_PER_SECOND, end.signal, async () => {
      const at = changed++;
      const policy = policies[Math.floor(at / others.length) % policies.length]!;
      times.push(await change(others[at % others.length]!, policy));
    });
    await sleep(TURN_MS);
    end.abort();
    await Promise.all([noisyOne, crowd]);
  }
  // A moment that was slow before, or is after, excuses nothing in between.
  const machine = Math.min(before, await yardstick());
  const [quiet, disturbed, busiest] = [calm, beside, noise].map((all) =>
    summarise({ times: all, totalMs: TURNS * TURN_MS }),
  );
  stage.report(
    judge(
      {
        id: `delivery/beside-busy${alone ? `-${OTHERS}` : ""}`,
        what: `policy of one of ${OTHERS} beside one that changes ${BUSY_PER_SECOND} times a second${alone ? "" : `, ${names.length} connected`}, p99`,
        measured: disturbed!.p99,
        unit: "ms",
        reference: { what: "without the busy one", value: quiet!.p99 },
        details: {
          p50: disturbed!.p50,
          "p50 without": quiet!.p50,
          "changes a second of the busy one": busiest!.perSecond,
          "its p50": busiest!.p50,
          "refused to it": refused,
          "machine slower by": machine,
        },
      },
      { text: "≤ without + 50 ms", atMost: quiet!.p99 + MORE_MS, scaledAtMost: quiet!.p99 + MORE_MS * machine },
    ),
  );
}

/** Calls `step` at a rate, whether earlier calls have ended or not; resolves when all have. */
async function every(perSecond: number, signal: AbortSignal, step: (index: number) => Promise<void>): Promise<void> {
  const calls: Promise<void>[] = [];
  const startedAt = performance.now();
  while (!signal.aborted) {
    const due = Math.floor(((performance.now() - startedAt) * perSecond) / 1000);
    while (calls.length < due) calls.push(step(calls.length));
    await sleep(2);
  }
  await Promise.all(calls);
}

import type { Measure } from "../../tests/support/neighbours/compare.ts";
import { ATTACKS, CONTROLS, Neighbours } from "../../tests/support/neighbours/neighbours.ts";
import { judge } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";

/** Of each attack; quiet phases and attacks take turns. */
const ROUNDS = 3;
/** Beside the one that is judged. */
const FURTHER: readonly Measure[] = ["connection", "dns", "command"];

/** What a quiet sandbox notices of a hostile one in the same host: the same operations with and without the attack. */
export async function neighbours(stage: Stage): Promise<void> {
  await using gateway = await stage.freshGateway();
  await using pair = await Neighbours.start(stage.net, gateway, stage.build.node);
  const attacks = { ...CONTROLS, ...ATTACKS };
  const compared = await pair.measure(Object.keys(attacks), ROUNDS, stage.seconds);
  let count = 0;
  const failures = new Set<string>();
  for (const { attack, measures, failures: failed } of compared) {
    for (const failure of failed) failures.add(failure);
    for (const { quiet, attacked } of Object.values(measures)) count += quiet.count + attacked.count;
    const { quiet, attacked } = measures.keepalive;
    stage.report(
      judge(
        {
          id: `neighbours/${attack}`,
          what: `neighbour's inspected HTTPS, keep-alive, p99: ${attacks[attack as keyof typeof attacks]}`,
          measured: attacked.p99,
          unit: "ms",
          reference: { what: "quiet", value: quiet.p99 },
          details: {
            p50: attacked.p50,
            "quiet p50": quiet.p50,
            ...Object.fromEntries(FURTHER.map((measure) => [`${measure} p99 ratio`, measures[measure].ratio])),
          },
        },
        Object.hasOwn(CONTROLS, attack) ? undefined : { text: "≤ 2 × quiet", atMost: 2 * quiet.p99 },
      ),
    );
  }
  for (const failure of failures) console.error(`neighbours: ${failure}`);
  stage.report(
    judge(
      {
        id: "neighbours/failed",
        what: `failed operations of the neighbour of ${count}`,
        measured: failures.size,
        unit: "count",
      },
      { text: "0", atMost: 0 },
    ),
  );
}

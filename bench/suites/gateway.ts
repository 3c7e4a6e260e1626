import { TestOpenShell } from "../../tests/support/openshell.ts";
import { judge } from "../support/report.ts";
import { type Stage, timed } from "../support/stage.ts";
import { median } from "../support/statistics.ts";

const STARTS = 5;

/** Starting and stopping. */
export async function gateway(stage: Stage): Promise<void> {
  await using user = TestOpenShell.create(stage.net, { command: [stage.build.launcher] });
  const times = { first: [] as number[], again: [] as number[], stop: [] as number[], node: [] as number[] };
  const openshell = [stage.build.launcher, "gateway"];
  const cwd = user.home.path();
  for (let round = 0; round < STARTS; round += 1) {
    times.node.push((await timed([stage.build.node, "-e", "0"], user.env, cwd)).totalMs);
    const start = await timed([...openshell, "start"], user.env, cwd);
    times[round === 0 ? "first" : "again"].push(start.totalMs);
    if (round === STARTS - 1) break;
    times.stop.push((await timed([...openshell, "stop"], user.env, cwd)).totalMs);
  }
  // Known to its owner by a command that ran.
  await user.ok(["gateway", "stop"]);
  const reference = { what: "node -e 0", value: median(times.node) };
  stage.report(
    judge(
      {
        id: "gateway/start",
        what: "openshell gateway start → listening, later starts",
        measured: median(times.again),
        unit: "ms",
        reference,
        details: { "first start, with its keys": times.first[0]! },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
  stage.report(
    judge(
      { id: "gateway/stop", what: "openshell gateway stop", measured: median(times.stop), unit: "ms", reference },
      { text: "≤ 1 s", atMost: 1000 },
    ),
  );
}

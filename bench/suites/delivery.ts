import { policyMessage } from "../../tests/support/api.ts";
import { benchPolicy, Origin } from "../support/origin.ts";
import { Simulation } from "../support/simulation.ts";
import type { Stage } from "../support/stage.ts";
import { slower } from "../support/yardstick.ts";
import { busy, OTHERS } from "./delivery/busy.ts";
import { crowd, PROVIDER } from "./delivery/crowd.ts";
import { enforced } from "./delivery/enforced.ts";

/** How soon changes reach sandboxes: real ones, very many, and many beside one that changes all the time. */
export async function delivery(stage: Stage): Promise<void> {
  const origin = await Origin.start(stage);
  const yardstick = (): Promise<number> => slower(origin);
  await enforced(stage, yardstick);
  await besideBusy(stage, yardstick);
  await using simulation = await Simulation.start(stage.net);
  const names = await crowd(stage, simulation);
  await busy(stage, simulation, names, yardstick);
}

/** One that changes all the time and the others whose changes it may not delay, alone on their gateway. */
async function besideBusy(stage: Stage, yardstick: () => Promise<number>): Promise<void> {
  await using simulation = await Simulation.start(stage.net);
  await simulation.gateway.createProvider(PROVIDER, { TOKEN: "0" });
  const spec = { policy: policyMessage(benchPolicy(1)), providers: [PROVIDER] };
  await busy(stage, simulation, await simulation.create(1 + OTHERS, spec), yardstick);
}

import { Simulation } from "../support/simulation.ts";
import type { Stage } from "../support/stage.ts";
import { busy } from "./delivery/busy.ts";
import { crowd } from "./delivery/crowd.ts";
import { enforced } from "./delivery/enforced.ts";

/** How soon changes reach sandboxes: real ones, very many, and many beside one that changes all the time. */
export async function delivery(stage: Stage): Promise<void> {
  await enforced(stage);
  await using simulation = await Simulation.start(stage.net);
  const names = await crowd(stage, simulation);
  await busy(stage, simulation, names);
}

import type { Mode } from "../../support/mode.ts";
import { Random } from "../random.ts";
import type { Schedule } from "../schedule.ts";
import type { Action } from "./proxy.ts";
import { PHASES, type PhaseName, STEPS } from "./steps.ts";

/** What a run of delivery does: a pure function of its seed and mode. */

export type OperationName = "create" | "flip" | "attach" | "detach" | "refuse" | "stop" | "start" | "finish";

export interface PlannedStrike {
  readonly phase: PhaseName;
  readonly step: string;
  readonly action: Action;
  readonly after: boolean;
  readonly holdMs: number;
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

export interface PlannedOperation {
  readonly operation: OperationName;
  /** Whether it goes on only when the change is known to be in force. */
  readonly waits: boolean;
  /** `flip`: how many policies and credentials follow each other. */
  readonly times: number;
  readonly pauseMs: number;
  readonly strikes: readonly PlannedStrike[];
}

export interface DeliveryPlan {
  /** As the world wants it: one client a sandbox. */
  readonly schedule: Schedule;
  readonly clients: readonly (readonly PlannedOperation[])[];
}

const STRIKES = 5;
const MAX_HOST_KILLS = 2;
/** Kills cost a start of what was killed. */
const ACTIONS: Readonly<Partial<Record<Action, number>>> = {
  drop: 3,
  delay: 3,
  duplicate: 3,
  reorder: 3,
  cut: 3,
  "kill-gateway": 2,
  "kill-host": 2,
};
/** Of messages that can be refused and sent again. */
const SPOILABLE: Readonly<Partial<Record<Action, number>>> = { ...ACTIONS, spoil: 5 };
/** Every numbered step. */
export const POINTS = PHASES.flatMap((phase) => STEPS[phase].map((step) => ({ phase, step: step as string })));

export function planDelivery(seed: number, mode: Mode): DeliveryPlan {
  const random = new Random(`openshell delivery ${mode} ${seed}`);
  const count = random.chance(0.3) ? 2 : 1;
  const clients = Array.from({ length: count }, (): PlannedOperation[] => []);
  // Neighbouring seeds go through all steps in turn, whatever else is drawn.
  const strikes = Array.from({ length: STRIKES }, (_, at): Writable<PlannedStrike> => {
    const point = POINTS[((seed - 1) * STRIKES + at) % POINTS.length]!;
    return {
      ...point,
      action: random.weighted<Action>(point.step.startsWith("update(") ? SPOILABLE : ACTIONS),
      after: random.chance(0.5),
      holdMs: random.chance(0.25) ? random.integer(5, 50) : random.integer(100, 500),
    };
  });
  // Hosts that die again and again are started later and later, on purpose: that is no matter of delivery.
  const kills = strikes.filter(({ action }) => action === "kill-host");
  for (const strike of kills.slice(MAX_HOST_KILLS)) strike.action = "cut";
  const shares = clients.map((): PlannedStrike[] => []);
  // The first message of a host belongs to whoever is first.
  for (const strike of strikes) shares[strike.phase === "host" ? 0 : random.integer(0, count)]!.push(strike);
  for (const [client, share] of shares.entries()) clients[client]!.push(...planClient(random, share));
  return {
    clients,
    schedule: {
      seed,
      placement: random.chance(0.15) ? "sandbox" : "workspace",
      clients: clients.map(() => []),
      strikes: [],
      forgetful: random.chance(0.1),
    },
  };
}

function planClient(random: Random, strikes: readonly PlannedStrike[]): readonly PlannedOperation[] {
  const plan: PlannedOperation[] = [];
  let attached = false;
  let running = true;
  const add = (operation: OperationName, own: readonly PlannedStrike[] = []): void => {
    // What is struck changes on meanwhile, most often: a message that is late meets what is newer.
    const struck = own.some(({ phase }) => phase === "update");
    const times = operation === "flip" ? random.integer(struck ? 2 : 1, 4) : 1;
    plan.push({
      operation,
      waits: random.chance(struck ? 0.25 : 0.5),
      times,
      pauseMs: random.integer(0, 120),
      strikes: own,
    });
  };
  const run = (): void => {
    if (!running) add("start");
    running = true;
  };
  const left = [...strikes];
  const early = left.filter(({ phase }) => phase === "host" || phase === "start-up").slice(0, 2);
  for (const strike of early) left.splice(left.indexOf(strike), 1);
  add("create", early);
  add("flip");
  // The main process's own end is the last thing that can happen to it.
  const last = left.filter(({ step }) => step.startsWith("mainExit"));
  while (left.length > 0) {
    const strike = left.splice(random.integer(0, left.length), 1)[0]!;
    if (last.includes(strike)) continue;
    if (strike.phase === "end") {
      run();
      add("stop", [strike]);
      running = false;
    } else if (strike.phase === "update") {
      run();
      add("flip", [strike]);
    } else if (strike.phase === "attach" || strike.phase === "detach") {
      run();
      if (attached !== (strike.phase === "detach")) {
        add(attached ? "detach" : "attach");
        attached = !attached;
      }
      add(strike.phase, [strike]);
      attached = strike.phase === "attach";
    } else {
      if (running) add("stop");
      add("start", [strike]);
      running = true;
    }
    if (running && random.chance(0.2)) add("refuse");
  }
  run();
  if (random.chance(0.5)) add("flip");
  if (last.length > 0) add("finish", last);
  return plan;
}

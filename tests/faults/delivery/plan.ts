import type { Mode } from "../../support/mode.ts";
import { Random } from "../random.ts";
import type { Schedule } from "../schedule.ts";
import type { Action } from "./proxy.ts";
import { PHASES, type PhaseName, STEPS } from "./steps.ts";

/** What a run of delivery does: a pure function of its seed and mode. */

export type OperationName = "create" | "flip" | "attach" | "detach" | "refuse" | "stop" | "start" | "relink" | "finish";

export interface PlannedStrike {
  readonly phase: PhaseName;
  readonly step: string;
  readonly action: Action;
  readonly after: boolean;
  readonly holdMs: number;
}

export interface Apart {
  /** The configuration passes first. */
  readonly swap: boolean;
  /** Between the halves. Milliseconds. */
  readonly holdMs: number;
  /** What is changed first: the half that comes alone before the pair. */
  readonly first: "policy" | "credential";
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

export interface PlannedOperation {
  readonly operation: OperationName;
  /** Whether it goes on only when the change is known to be in force. */
  readonly waits: boolean;
  /** `flip`: how many policies and credentials follow each other. */
  readonly times: number;
  /** `flip`: the changes reach the sandbox as one pair, whose halves pass apart unless they are struck. */
  readonly apart: Apart | undefined;
  readonly pauseMs: number;
  readonly strikes: readonly PlannedStrike[];
}

export interface DeliveryPlan {
  /** As the world wants it: one client a sandbox. */
  readonly schedule: Schedule;
  readonly clients: readonly (readonly PlannedOperation[])[];
}

/** Forty seeds plan each step seven times at least. */
const STRIKES = 6;
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
/** Two runs of three begin with such a one, which nothing else hides. */
const SPOILT = ["update(config)", "update(environment)", undefined] as const;
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
  for (const [client, share] of shares.entries()) clients[client]!.push(...planClient(random, share, seed + client));
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

/** What an operation is when it is tried once more, or begun with: nothing is left to chance. */
export function plain(operation: OperationName, strikes: readonly PlannedStrike[] = []): PlannedOperation {
  return { operation, waits: true, times: 1, apart: undefined, pauseMs: 0, strikes };
}

/** What brings a step about that its operation did not reach. `attached`: the provider is, at the moment. */
export function again(strike: PlannedStrike, attached: boolean): readonly PlannedOperation[] {
  const { phase, step } = strike;
  switch (phase) {
    case "attach":
      return [...(attached ? [plain("detach")] : []), plain("attach", [strike])];
    case "detach":
      return [...(attached ? [] : [plain("attach")]), plain("detach", [strike])];
    case "update":
      return [plain("flip", [strike])];
    case "start-up":
      return [plain("stop"), plain("start", [strike])];
    case "host":
      return [plain("relink", [strike])];
    case "end":
      return step.startsWith("mainExit") ? [plain("finish", [strike])] : [plain("stop", [strike]), plain("start")];
  }
}

function planClient(random: Random, strikes: readonly PlannedStrike[], turn: number): readonly PlannedOperation[] {
  const plan: PlannedOperation[] = [];
  let attached = false;
  let running = true;
  const add = (operation: OperationName, own: readonly PlannedStrike[] = []): void => {
    // What is struck changes on meanwhile, most often: a message that is late meets what is newer.
    const struck = own.some(({ phase }) => phase === "update");
    const waits = random.chance(struck ? 0.25 : 0.5);
    const times = operation === "flip" ? random.integer(struck ? 2 : 1, 4) : 1;
    const swap = random.chance(0.5);
    plan.push({
      operation,
      waits,
      times,
      apart: operation === "flip" && !waits && times > 1 ? apart(random, swap) : undefined,
      pauseMs: random.integer(0, 120),
      strikes: own,
    });
  };
  const run = (): void => {
    if (!running) add("start");
    running = true;
  };
  const begin = (swap: boolean): void =>
    void plan.push({ ...plain("flip"), waits: false, times: 2, apart: apart(random, swap) });
  const left = [...strikes];
  // A host says its first message once.
  const hosts = left.filter(({ phase }) => phase === "host");
  const early = [...hosts, ...left.filter(({ phase }) => phase === "start-up")].slice(0, Math.max(2, hosts.length));
  for (const strike of early) left.splice(left.indexOf(strike), 1);
  add("create", early);
  // Halves apart in both orders, in every run, before anything else happens.
  begin(turn % 2 === 0);
  begin(turn % 2 === 1);
  const spoilt = SPOILT[turn % SPOILT.length];
  if (spoilt !== undefined) {
    const strike = { phase: "update", step: spoilt, action: "spoil", after: false, holdMs: 0 } as const;
    plan.push(plain("flip", [strike]));
  }
  // The main process's own end comes last: once a strike, since an end that is told anew is told by another message.
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
  for (const [at, strike] of last.entries()) {
    if (at > 0) add("start");
    add("finish", [strike]);
  }
  return plan;
}

function apart(random: Random, swap: boolean): Apart {
  const holdMs = random.chance(0.3) ? random.integer(3, 15) : random.integer(60, 200);
  return { swap, holdMs, first: random.chance(0.5) ? "policy" : "credential" };
}

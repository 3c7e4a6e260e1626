import type { Mode } from "../support/mode.ts";
import { type FaultName, faultsOf } from "./fault-names.ts";
import { Random } from "./random.ts";

/**
 * What a run does: a pure function of its seed and mode. Each client has sandboxes of its own and does one thing after the
 * other; a strike is tied to one operation of one client.
 */

export const OPERATIONS = [
  "create",
  "stop",
  "start",
  "delete",
  "policy",
  "exec",
  "provider",
  "attach",
  "detach",
  "request",
] as const;
export type OperationName = (typeof OPERATIONS)[number];

export interface PlannedOperation {
  readonly operation: OperationName;
  /** Whose sandbox it is about; for `provider`, the provider's name. */
  readonly target: string;
  /** Policy variant, serial number of a credential, or exit code. */
  readonly value: number;
  /** After its success the same request is sent once more, under the same request id. */
  readonly again: boolean;
}

export interface PlannedStrike {
  readonly fault: FaultName;
  readonly client: number;
  /** Index of the client's operation. */
  readonly at: number;
  /** After the operation began. */
  readonly delayMs: number;
  /** Until it is healed, for faults that last. */
  readonly holdMs: number;
  /** Chooses among the processes, or the distance of a clock's jump. */
  readonly choice: number;
}

export interface Schedule {
  readonly seed: number;
  readonly placement: "workspace" | "sandbox";
  readonly clients: readonly (readonly PlannedOperation[])[];
  readonly strikes: readonly PlannedStrike[];
  /** The gateway is killed once more before the end is looked at: what is checked then comes from the disk. */
  readonly forgetful: boolean;
}

export const POLICY_VARIANTS = 3;
export const SHARED_PROVIDER = "shared";
/** No policy binds it: it is attached and detached, and shows in the environment of what is executed. */
export const EXTRA_PROVIDER = "extra";
export const ownProvider = (client: number): string => `own-${client}`;

const MAX_CLIENTS = 3;
const MAX_SANDBOXES = 2;
/** About what an operation takes on a quiet machine, up to the end of what it begins. Milliseconds. */
const TYPICAL_MS: Readonly<Record<OperationName, number>> = {
  create: 160,
  stop: 60,
  start: 120,
  delete: 60,
  policy: 15,
  exec: 40,
  provider: 15,
  attach: 20,
  detach: 20,
  request: 90,
};
const WEIGHTS = {
  running: { exec: 3, request: 1, policy: 2, provider: 2, attach: 3, stop: 2, delete: 2, create: 1 },
  stopped: { start: 4, policy: 1, provider: 1, attach: 1, delete: 1 },
} as const;

/** Every fault during every operation of this mode. */
export function pairs(mode: Mode): readonly (readonly [FaultName, OperationName])[] {
  return faultsOf(mode).flatMap((fault) => OPERATIONS.map((operation) => [fault, operation] as const));
}

export function planRun(seed: number, mode: Mode): Schedule {
  const random = new Random(`openshell faults ${mode} ${seed}`);
  // Neighbouring seeds go through all pairs in turn, whatever else is drawn: 37 has no divisor in common with their number.
  const all = pairs(mode);
  const wanted = [all[(seed * 37) % all.length]!];
  if (random.chance(0.75)) wanted.push(all[(seed * 37 + (all.length >> 1)) % all.length]!);
  const clients = planClients(random.fork("clients"), wanted);
  return {
    seed,
    placement: random.chance(0.15) ? "sandbox" : "workspace",
    clients,
    strikes: planStrikes(random.fork("strikes"), wanted, clients),
    forgetful: random.chance(0.25),
  };
}

function planClients(
  random: Random,
  wanted: readonly (readonly [FaultName, OperationName])[],
): readonly (readonly PlannedOperation[])[] {
  const serials = new Map<string, number>();
  for (;;) {
    serials.clear();
    const count = random.integer(2, MAX_CLIENTS + 1);
    const clients = Array.from({ length: count }, (_, client) => planClient(random, client, serials));
    const present = new Set(clients.flat().map(({ operation }) => operation));
    if (wanted.every(([, operation]) => present.has(operation))) return clients;
  }
}

function planClient(random: Random, client: number, serials: Map<string, number>): readonly PlannedOperation[] {
  const plan: PlannedOperation[] = [];
  const states = new Map<string, { running: boolean; policy: number; extra: boolean }>();
  let created = 0;
  const add = (operation: OperationName, target: string, value = 0): void => {
    plan.push({ operation, target, value, again: operation !== "request" && random.chance(0.25) });
  };
  const create = (): void => {
    const name = `c${client}-${created++}`;
    const policy = random.integer(0, POLICY_VARIANTS);
    add("create", name, policy);
    states.set(name, { running: true, policy, extra: false });
  };
  create();
  for (let left = random.integer(2, 5); left > 0; left--) {
    const [name, state] = random.pick([...states]);
    const operation = random.weighted<OperationName>(state.running ? WEIGHTS.running : WEIGHTS.stopped);
    if (operation === "create") {
      if (states.size < MAX_SANDBOXES) create();
    } else if (operation === "provider") {
      const target = client === 0 && random.chance(0.5) ? SHARED_PROVIDER : ownProvider(client);
      serials.set(target, (serials.get(target) ?? 0) + 1);
      add(operation, target, serials.get(target));
    } else if (operation === "policy") {
      state.policy = (state.policy + random.integer(1, POLICY_VARIANTS)) % POLICY_VARIANTS;
      add(operation, name, state.policy);
    } else if (operation === "attach") {
      add(state.extra ? "detach" : "attach", name);
      state.extra = !state.extra;
    } else if (operation === "exec") {
      add(operation, name, random.pick([0, 0, 1, 3, 42, 255]));
    } else {
      add(operation, name);
      if (operation === "delete") states.delete(name);
      else if (operation !== "request") state.running = operation === "start";
      if (states.size === 0) create();
    }
  }
  return plan;
}

function planStrikes(
  random: Random,
  wanted: readonly (readonly [FaultName, OperationName])[],
  clients: readonly (readonly PlannedOperation[])[],
): readonly PlannedStrike[] {
  return wanted.map(([fault, operation]) => {
    const places = clients.flatMap((plan, client) =>
      plan.flatMap((planned, at) => (planned.operation === operation ? [{ client, at }] : [])),
    );
    const typical = TYPICAL_MS[operation];
    return {
      fault,
      ...random.pick(places),
      delayMs: random.chance(0.25) ? 0 : random.integer(0, typical),
      holdMs: random.integer(100, 500),
      choice: random.integer(0, 1_000),
    };
  });
}

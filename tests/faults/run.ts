import { setTimeout as sleep } from "node:timers/promises";
import type { TestInternet } from "../support/internet/index.ts";
import { mode } from "../support/mode.ts";
import { descriptors, expectConverged, expectNothingLeft } from "./check.ts";
import type { Counts } from "./counts.ts";
import { FAULTS } from "./faults.ts";
import { RUN } from "./operations.ts";
import { type PlannedStrike, planRun } from "./schedule.ts";
import { type Api, kill, World } from "./world.ts";

/** One run: start, operations and strikes, end, looks. */

export interface RunOptions {
  readonly seed: number;
  readonly net: TestInternet;
  readonly counts: Counts;
  readonly cli: readonly string[];
  readonly programs: string;
}

export interface Outcome {
  readonly ok: boolean;
  /** Plan, what happened with times, and what the logs warn of. */
  readonly report: string;
}

export async function runSeed(options: RunOptions): Promise<Outcome> {
  const schedule = planRun(options.seed, mode);
  let world: World | undefined;
  let problem: unknown;
  try {
    world = await World.start({ ...options, schedule });
    await drive(world);
  } catch (error) {
    problem = error;
  }
  const words = world?.lastWords() ?? [];
  try {
    await world?.[Symbol.asyncDispose]();
  } catch (error) {
    problem ??= error;
  }
  const what = problem instanceof Error ? (problem.stack ?? problem.message) : (problem ?? "ok");
  const plan = schedule.strikes.map(({ fault, client, at, delayMs, holdMs }) => {
    const planned = schedule.clients[client]![at]!;
    return `${fault} ${delayMs} ms into ${planned.operation} ${planned.target}, ${holdMs} ms long`;
  });
  const report = [
    `seed ${options.seed} as ${mode}: ${what}`,
    `  again: npm run test:faults -- --mode ${mode} --from ${options.seed} --seeds 1`,
    `  plan (${schedule.placement}): ${plan.join("; ")}`,
    ...(world?.trace ?? []).map((line) => `  ${line}`),
    ...words.map((line) => `  ${line}`),
  ].join("\n");
  return { ok: problem === undefined, report };
}

async function drive(world: World): Promise<void> {
  const { schedule } = world;
  const api = world.client();
  const fresh = descriptors(world);
  const healing: Promise<void>[] = [];
  const clients = schedule.clients.map(async (plan, client) => {
    const own = world.client();
    for (const [at, planned] of plan.entries()) {
      const { operation, target, value } = planned;
      const strikes = schedule.strikes.filter((strike) => strike.client === client && strike.at === at);
      const armed = await Promise.all(strikes.map((strike) => arm(world, strike, target)));
      const step = (name: string): void => void world.steps.set(client, { operation, step: name, target });
      world.note(`${operation} ${target} ${value}`);
      step("call");
      healing.push(...armed.map((strike) => strike()));
      try {
        await RUN[operation]({ world, api: own, client, planned, step });
      } finally {
        world.steps.delete(client);
      }
      world.note(`${operation} ${target} done`);
    }
  });
  const outcomes = await Promise.allSettled(clients);
  const healed = await Promise.allSettled(healing);
  for (const outcome of [...outcomes, ...healed]) if (outcome.status === "rejected") throw outcome.reason;
  if (schedule.forgetful) {
    world.note("the gateway is killed: what follows is read from the disk");
    const pid = world.gatewayPid();
    if (pid !== undefined) kill(pid);
  }
  // A gateway that ended is found by whoever comes next.
  if (!(await world.serving())) await world.revive();
  await expectConverged(world, api);
  await expectHosts(world, api);
  await expectNothingLeft(world, api, { gateway: fresh.gateway, host: fresh.gateway });
}

/** Looks up what the strike needs; the function that is returned waits for its moment, strikes, and heals. */
async function arm(world: World, planned: PlannedStrike, target: string): Promise<() => Promise<void>> {
  const armed = await FAULTS[planned.fault](world, planned, target);
  return async () => {
    if (planned.delayMs > 0) await sleep(planned.delayMs);
    const met = [...world.steps.values()];
    const struck = await armed.strike();
    world.disturb();
    world.note(
      `${planned.fault}${struck ? "" : " met nothing"}: ${met.map((one) => `${one.operation} ${one.step}`).join(", ")}`,
    );
    if (struck) {
      for (const { operation, step } of met) world.counts.add(planned.fault, `${operation} ${step}`);
      if (met.length === 0) world.counts.add(planned.fault, "nothing");
    }
    if (armed.heal === undefined) return;
    await sleep(planned.holdMs);
    await armed.heal();
    world.disturb();
    world.note(`${planned.fault} is over`);
  };
}

/** A sandbox that runs is held by a host: there is none too many. */
async function expectHosts(world: World, _api: Api): Promise<void> {
  const running = world.model.existing().filter(({ wish, broken }) => wish === "running" && broken === undefined);
  const hosts = world.hostPids().length;
  if (running.length > 0 && hosts === 0) throw new Error(`${running.length} sandboxes run without a host`);
}

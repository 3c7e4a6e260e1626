import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { create as create_ } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { FilesystemPolicySchema, PolicyStatus, ProviderReadinessState, SandboxPhase } from "@openshell/api";
import { policyMessage } from "../../support/api.ts";
import type { TestInternet } from "../../support/internet/index.ts";
import { mode } from "../../support/mode.ts";
import { descriptors, expectNothingLeft } from "../check.ts";
import type { Counts } from "../counts.ts";
import type { ModelSandbox } from "../model.ts";
import type { Outcome } from "../run.ts";
import { EXTRA_PROVIDER, ownProvider } from "../schedule.ts";
import { secretOf } from "../sites.ts";
import { type Api, describe, EXTRA_KEY, keyOf, kill, SCOPE, World } from "../world.ts";
import { HOST, type Origin, PACE, pathOf, REFUSED, sightings } from "./origin.ts";
import { again, type OperationName, type PlannedOperation, type PlannedStrike, plain, planDelivery } from "./plan.ts";
import { probe } from "./probe.ts";
import { HostProxy, type ProxyStrike } from "./proxy.ts";
import type { Tally } from "./tally.ts";
import { type Change, violations } from "./violations.ts";

/** One run of delivery: changes one after the other, strikes at messages between gateway and host, and a look at everything. */

/** Everything is in force so long after the last disturbance, at a reconcile a second. Milliseconds. */
const CONVERGED_MS = 6_000;
const CONFIG = "[openshell.gateway]\nconfig_consistency_check_interval_seconds = 1\n";
/** A message that an operation brings about comes within this of its end and of the last disturbance, or does not. Milliseconds. */
const MESSAGE_MS = 600;
/** The first of several changes has reached the supervisor within this, or does not before the others. Milliseconds. */
const FIRST_MS = 400;
/** How often a step that was not reached is brought about once more. */
const AGAIN = 3;
/** After a change is known to be in force, nothing older may pass: that long it is looked at closely. Milliseconds. */
const KNOWN_MS = 20;
const POLL_MS = 20;
const EXIT = 7;
const NO_WAIT = { headers: { "openshell-config-wait": "0" } };

export interface DeliveryOptions {
  readonly seed: number;
  readonly net: TestInternet;
  readonly origin: Origin;
  readonly counts: Counts;
  readonly tally: Tally;
  readonly cli: readonly string[];
  readonly programs: string;
}

export async function runDeliverySeed(options: DeliveryOptions): Promise<Outcome> {
  const { clients, schedule } = planDelivery(options.seed, mode);
  let world: World | undefined;
  let proxy: HostProxy | undefined;
  let problem: unknown;
  try {
    const hostSocket = (home: string): string => join(home, "proxy.sock");
    world = await World.start({ ...options, schedule, config: CONFIG, hostSocket });
    proxy = new HostProxy(join(world.runtime, "host.sock"), hooksOf(world, options.origin));
    await proxy.listen(hostSocket(world.user.home.folder));
    await drive(world, proxy, clients, options);
  } catch (error) {
    problem = error;
  }
  const words = world?.lastWords() ?? [];
  try {
    await world?.[Symbol.asyncDispose]();
  } catch (error) {
    problem ??= error;
  }
  await proxy?.[Symbol.asyncDispose]();
  const what = problem instanceof Error ? (problem.stack ?? problem.message) : (problem ?? "ok");
  const plan = clients.map((operations, client) => {
    const parts = operations.map(({ operation, times, strikes }) => {
      const struck = strikes.map(({ action, step, after }) => `${action}${after ? "+" : ""} ${step}`);
      return `${operation}${times > 1 ? `×${times}` : ""}${struck.length > 0 ? ` [${struck.join(", ")}]` : ""}`;
    });
    return `b${client}: ${parts.join(", ")}`;
  });
  const seen = clients.map(
    (_, client) => `b${client} saw ${sightings(options.origin.of(world?.salt ?? "", `b${client}`))}`,
  );
  const report = [
    `delivery seed ${options.seed} as ${mode}: ${what}`,
    `  again: npm run test:faults -- --kind delivery --mode ${mode} --from ${options.seed} --seeds 1`,
    ...plan.map((line) => `  plan (${schedule.placement}) ${line}`),
    ...(world?.trace ?? []).map((line) => `  ${line}`),
    ...seen.map((line) => `  ${line}`),
    `  messages: ${[...(proxy?.passed ?? [])].map(([step, count]) => `${step} ${count}`).join(", ")}`,
    ...words.map((line) => `  ${line}`),
  ].join("\n");
  return { ok: problem === undefined, report };
}

function hooksOf(world: World, origin: Origin): ConstructorParameters<typeof HostProxy>[1] {
  return {
    disturb: () => world.disturb(),
    note: (text) => world.note(text),
    effect: (sandbox, withinMs) => origin.hurry(world.salt, sandbox, withinMs),
    kill: (part, host) => {
      const pid = part === "gateway" ? (world.gatewayPid() ?? 0) : host;
      if (pid > 0) kill(pid);
    },
  };
}

/** One sandbox, and what its client knows. */
interface Box {
  readonly name: string;
  readonly client: number;
  readonly api: Api;
  readonly model: ModelSandbox;
  readonly changes: Change[];
  /** Of the policy, from 0 on. */
  version: number;
  serial: number;
  /** Last. Wall clock, milliseconds. */
  startedAt: number;
  finished: boolean;
}

type Acting = Box &
  Pick<PlannedOperation, "waits" | "times" | "apart"> & {
    readonly world: World;
    readonly origin: Origin;
    readonly proxy: HostProxy;
    /** Strikes are armed by the time that this was called; by the end of the operation in any case. */
    readonly arm: () => void;
  };

const RUN: Readonly<Record<OperationName, (acting: Acting, box: Box) => Promise<void>>> = {
  create,
  flip,
  attach: (acting) => attachment(acting, true),
  detach: (acting) => attachment(acting, false),
  refuse,
  stop,
  start,
  relink: async ({ proxy }) => proxy.cutAll(),
  finish,
};

async function drive(
  world: World,
  proxy: HostProxy,
  clients: readonly (readonly PlannedOperation[])[],
  { counts, tally, origin }: DeliveryOptions,
): Promise<void> {
  const fresh = descriptors(world);
  const boxes = clients.map((_, client): Box => {
    const name = `b${client}`;
    const model: ModelSandbox = {
      name,
      client,
      id: "",
      wish: "running",
      policy: 0,
      revisions: 1,
      extra: false,
      broken: undefined,
      executions: new Map(),
    };
    return {
      name,
      client,
      api: world.client(),
      model,
      changes: [],
      version: 0,
      serial: 0,
      startedAt: 0,
      finished: false,
    };
  });
  const outcomes = await Promise.allSettled(
    clients.map(async (plan, client) => {
      const box = boxes[client]!;
      const missed: PlannedStrike[] = [];
      const perform = async (planned: PlannedOperation): Promise<void> => {
        missed.push(...(await operate({ world, proxy, origin, counts }, box, planned)));
      };
      for (const planned of plan) await perform(planned);
      for (let left = AGAIN; left > 0 && missed.length > 0; left--) {
        for (const strike of missed.splice(0)) {
          world.note(`${strike.step} was not reached: again`);
          if (box.finished) await perform(plain("start"));
          await settled(world, box);
          for (const planned of again(strike, box.model.extra)) await perform(planned);
        }
      }
    }),
  );
  // What is said last: nothing is done to it any more.
  for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  if (world.schedule.forgetful) {
    world.note("the gateway is killed: what follows is read from the disk");
    const pid = world.gatewayPid();
    if (pid !== undefined) kill(pid);
    world.disturb();
  }
  if (!(await world.serving())) await world.revive();
  const startedAt = performance.now();
  await Promise.all(boxes.map((box) => expectInForce(world, box, origin, startedAt)));
  const tookMs = world.since(startedAt);
  tally.converged(tookMs);
  tally.add(proxy.apart);
  world.note(`converged within ${tookMs.toFixed(0)} ms`);
  for (const box of boxes) {
    const wrong = violations(box.changes, origin.of(world.salt, box.name));
    if (wrong.length > 0)
      throw new Error(`${box.name}: ${wrong.length} wrong requests:\n  ${wrong.slice(0, 5).join("\n  ")}`);
    tally.right += origin.of(world.salt, box.name).length;
    world.note(`${box.name}: ${origin.of(world.salt, box.name).length} requests were right`);
  }
  await expectNothingLeft(world, boxes[0]!.api, { gateway: fresh.gateway, host: fresh.gateway });
}

/** One operation with its strikes. Returns those whose messages did not come. */
async function operate(
  { world, proxy, origin, counts }: { world: World; proxy: HostProxy; origin: Origin; counts: Counts },
  box: Box,
  { operation, strikes, pauseMs, waits, times, apart }: PlannedOperation,
): Promise<readonly PlannedStrike[]> {
  const planned = strikes.map((plan): { readonly plan: PlannedStrike; readonly strike: ProxyStrike } => ({
    plan,
    strike: { ...plan, sandbox: box.name, struck: false },
  }));
  const arm = (): void => {
    for (const { strike } of planned) if (!strike.struck) proxy.arm(strike);
  };
  if (apart === undefined) arm();
  const how = apart === undefined ? "" : `, as one pair, ${apart.swap ? "swapped" : "in order"}, ${apart.first} first`;
  world.note(`${operation} ${box.name}${times > 1 ? ` ${times} times` : ""}${waits ? "" : ", not waited for"}${how}`);
  await RUN[operation](
    Object.assign(Object.create(box) as Box, { world, proxy, origin, waits, times, apart, arm }),
    box,
  );
  world.note(`${operation} ${box.name} done`);
  const endedAt = performance.now();
  while (planned.some(({ strike }) => !strike.struck) && !world.late(endedAt, MESSAGE_MS)) await sleep(POLL_MS);
  for (const { plan, strike } of planned) {
    if (strike.struck) counts.add(strike.action, `${plan.phase}:${strike.step}`);
    else proxy.disarm(strike);
  }
  await sleep(pauseMs);
  return planned.flatMap(({ plan, strike }) => (strike.struck ? [] : [plan]));
}

/** The host is bound in all versions: a process keeps the names of its credentials only while what they are for is the same. */
function policyOf(client: number, version: number, also: readonly string[] = []): string {
  const rules = [PACE, pathOf(version), ...also].map((path) => `{ allow: { method: GET, path: ${path} } }`);
  return `version: 1
network_policies:
  flip:
    endpoints:
      - host: ${HOST}
        port: 443
        protocol: rest
        enforcement: enforce
        rules: [${rules.join(", ")}]
        credential_binding: { provider: ${ownProvider(client)} }
    binaries: [{ path: "/**" }]
`;
}

async function create({ world, origin, api, client, name }: Acting, box: Box): Promise<void> {
  const { model } = box;
  world.model.sandboxes.set(name, model);
  const spec = {
    command: [
      "/usr/bin/python3",
      "-IS",
      "-c",
      probe({ host: HOST, salt: world.salt, name, key: "OWN_KEY", exit: EXIT }),
    ],
    providers: [ownProvider(client)],
    policy: policyMessage(policyOf(client, 0)),
  };
  model.id = await world.attempt(`create ${name}`, async (requestId, signal) => {
    const { sandbox } = await api.createSandbox({ workspaceScope: SCOPE, name, requestId, spec }, signal);
    return sandbox!.metadata!.id;
  });
  await ready(world, api, name);
  // Whoever does not ask yet sees nothing.
  await asks(world, origin, box);
}

/** The main process has asked since it was started last, or does not get to it. */
async function asks(world: World, origin: Origin, { name, startedAt }: Box): Promise<void> {
  const from = performance.now();
  while ((origin.of(world.salt, name).at(-1)?.startedAt ?? 0) <= startedAt && !world.late(from, CONVERGED_MS))
    await sleep(POLL_MS);
}

async function flip({ world, proxy, name, times, apart, arm, ...acting }: Acting, box: Box): Promise<void> {
  const waits = acting.waits;
  const origin = acting.origin;
  if (apart === undefined) {
    for (let left = times; left > 0; left--) {
      await changePolicy(world, origin, box, waits);
      await changeCredential(world, origin, box, waits);
    }
    return;
  }
  const order = apart.first === "policy" ? [changePolicy, changeCredential] : [changeCredential, changePolicy];
  const changes = Array.from({ length: times }, () => order).flat();
  const stall = proxy.stall(name);
  try {
    for (const [at, change] of changes.entries()) {
      await change(world, origin, box, false);
      if (at === 0) await stall.reached(FIRST_MS);
    }
    proxy.split({ sandbox: name, ...apart });
    arm();
  } finally {
    stall.release();
  }
}

async function changePolicy(world: World, origin: Origin, box: Box, waits: boolean): Promise<void> {
  const { api, client, name } = box;
  const version = ++box.version;
  const policy = policyMessage(policyOf(client, version));
  const change: Change = { kind: "policy", value: version, sentAt: Date.now() };
  box.changes.push(change);
  origin.expect(world.salt, name, version);
  box.model.revisions = await world.attempt(`policy ${version} of ${name}`, async (requestId, signal) => {
    const request = { workspaceScope: SCOPE, sandbox: name, policy, requestId };
    return (await api.updateConfig(request, { ...signal, ...NO_WAIT })).version;
  });
  if (!waits) return;
  await policyInForce(world, box);
  known(world, origin, box, change);
}

async function changeCredential(world: World, origin: Origin, box: Box, waits: boolean): Promise<void> {
  const { api, client } = box;
  const serial = ++box.serial;
  const provider = ownProvider(client);
  const change: Change = { kind: "credential", value: serial, sentAt: Date.now() };
  box.changes.push(change);
  await world.attempt(`provider ${provider} ${serial}`, async (requestId, signal) => {
    const message = {
      metadata: { name: provider },
      credentials: { [keyOf(provider)]: secretOf(world.salt, provider, serial) },
      config: { serial: String(serial) },
    };
    await api.updateProvider({ workspaceScope: SCOPE, provider: message, requestId }, signal);
  });
  world.model.serials.set(provider, serial);
  if (!waits) return;
  await providerBecomes(world, box, provider, "READY");
  known(world, origin, box, change);
}

function known(world: World, origin: Origin, { name }: Box, change: Change): void {
  change.acknowledgedAt = Date.now();
  origin.hurry(world.salt, name, KNOWN_MS);
}

async function attachment({ world, api, name, waits }: Acting, attached: boolean): Promise<void> {
  const box = world.model.sandbox(name);
  const receipt = await world.attempt(`${attached ? "attach" : "detach"} ${name}`, async (requestId, signal) => {
    const change = { workspaceScope: SCOPE, sandbox: name, provider: EXTRA_PROVIDER, requestId };
    if (attached) return (await api.attachSandboxProvider(change, signal)).receipt;
    return (await api.detachSandboxProvider(change, signal)).receipt;
  });
  box.extra = attached;
  if (!waits) return;
  await providerBecomes(world, { api, name }, EXTRA_PROVIDER, attached ? "READY" : "REVOKED", {
    receiptId: receipt!.receiptId,
  });
}

/** Changes that are refused: before they are stored, and by the request's own form. */
async function refuse({ world, api, client, name, version }: Acting): Promise<void> {
  const policy = policyMessage(policyOf(client, version, [REFUSED]));
  // What a command line would not send.
  policy.filesystem = create_(FilesystemPolicySchema, { readWrite: ["/"] });
  try {
    await world.attempt(`refused policy of ${name}`, async (requestId, signal) => {
      const request = { workspaceScope: SCOPE, sandbox: name, policy, requestId };
      await api.updateConfig(request, { ...signal, ...NO_WAIT });
    });
  } catch (error) {
    const { code } = ConnectError.from(error);
    if (code === Code.InvalidArgument || code === Code.FailedPrecondition) return;
    throw error;
  }
  throw new Error(`a policy that makes / writable was stored for ${name}`);
}

async function stop({ world, api, name }: Acting, { model }: Box): Promise<void> {
  model.wish = "stopped";
  await world.attempt(`stop ${name}`, async (requestId, signal) => {
    await api.stopSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
  });
  await world.until(api, name, "STOPPED", (now) => now?.status?.phase === SandboxPhase.STOPPED);
}

async function start({ world, api, name }: Acting, box: Box): Promise<void> {
  box.model.wish = "running";
  box.startedAt = Date.now();
  box.finished = false;
  await world.attempt(`start ${name}`, async (requestId, signal) => {
    await api.startSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
  });
  await ready(world, api, name);
}

/** Lets the main process end by itself; its exit is what it gave. */
async function finish({ world, api, name, origin }: Acting, box: Box): Promise<void> {
  // One that has just been started does not look for its end yet.
  await asks(world, origin, box);
  try {
    await execute(world, box, 'touch "$HOME/end"');
  } catch (error) {
    // It had been told already, by a call whose answer was lost.
    if ((await world.look(api, name))?.status?.exitCode === undefined) throw error;
  }
  box.finished = true;
  const exited = await world.until(api, name, "exited", (now) => now?.status?.exitCode !== undefined);
  if (exited!.status!.exitCode !== EXIT) throw new Error(`${name} is ${describe(exited)}, its exit was ${EXIT}`);
}

async function ready(world: World, api: Api, name: string): Promise<void> {
  const ended: readonly SandboxPhase[] = [SandboxPhase.READY, SandboxPhase.ERROR];
  const found = await world.until(api, name, "READY", (now) => ended.includes(now?.status?.phase ?? 0));
  if (found?.status?.phase !== SandboxPhase.READY) throw new Error(`${name} is ${describe(found)}`);
}

async function policyInForce(
  world: World,
  { api, name, model }: Box,
  startedAt: number = performance.now(),
): Promise<void> {
  for (;;) {
    const { revision, activeVersion } = await world.attempt(`policy of ${name}`, (_id, signal) =>
      api.getSandboxPolicyStatus({ workspaceScope: SCOPE, sandbox: name }, signal),
    );
    if (revision?.version !== model.revisions)
      throw new Error(`the policy of ${name} is revision ${revision?.version}, answered was ${model.revisions}`);
    if (activeVersion === model.revisions && revision.status === PolicyStatus.LOADED) return;
    if (world.late(startedAt, CONVERGED_MS))
      throw new Error(
        `policy of ${name}: ${PolicyStatus[revision.status]}, active ${activeVersion}, stored ${model.revisions}`,
      );
    await sleep(POLL_MS);
  }
}

async function providerBecomes(
  world: World,
  { api, name }: Pick<Box, "api" | "name">,
  provider: string,
  wanted: keyof typeof ProviderReadinessState,
  { receiptId = "", startedAt = performance.now() }: { readonly receiptId?: string; readonly startedAt?: number } = {},
): Promise<void> {
  for (;;) {
    const { status } = await world.attempt(`${provider} of ${name}`, (_id, signal) =>
      api.getSandboxProviderStatus({ workspaceScope: SCOPE, sandbox: name, provider, receiptId }, signal),
    );
    if (status!.state === ProviderReadinessState[wanted]) return;
    if (world.late(startedAt, CONVERGED_MS)) {
      const state = ProviderReadinessState[status!.state];
      throw new Error(`${provider} of ${name} did not become ${wanted}: ${state}, reason ${status!.reason}`);
    }
    await sleep(POLL_MS);
  }
}

/** Runs a command, as often as it takes while the sandbox waits for a host. */
async function execute(
  world: World,
  { api, name }: Box,
  script: string,
  startedAt: number = performance.now(),
): Promise<string> {
  for (;;) {
    let problem: unknown;
    try {
      const command = ["/bin/sh", "-c", script];
      return await world.attempt(`exec in ${name}`, async (_id, signal) => {
        let output = "";
        const request = { workspaceScope: SCOPE, sandbox: name, command, noLoginShell: true };
        for await (const { payload } of api.execSandbox(request, signal))
          if (payload.case === "stdout") output += Buffer.from(payload.value.data).toString();
        return output;
      });
    } catch (error) {
      if (ConnectError.from(error).code !== Code.FailedPrecondition) throw error;
      problem = error;
    }
    if (world.late(startedAt, CONVERGED_MS)) throw problem;
    await sleep(POLL_MS);
  }
}

/** It is READY under what was said last. */
async function settled(world: World, box: Box, startedAt: number = performance.now()): Promise<void> {
  const { api, name, client, model } = box;
  await world.until(api, name, "READY", (now) => now?.status?.phase === SandboxPhase.READY, CONVERGED_MS);
  await policyInForce(world, box, startedAt);
  await providerBecomes(world, box, ownProvider(client), "READY", { startedAt });
  if (model.extra) await providerBecomes(world, box, EXTRA_PROVIDER, "READY", { startedAt });
}

/** What was said last decides, everywhere: all of it within one limit, from `startedAt` or the last disturbance on. */
async function expectInForce(world: World, box: Box, origin: Origin, startedAt: number): Promise<void> {
  const { api, name, model, version, serial } = box;
  if (box.finished) {
    const now = await world.look(api, name);
    if (now?.status?.exitCode !== EXIT) throw new Error(`${name} is ${describe(now)}, its exit was ${EXIT}`);
    return;
  }
  await settled(world, box, startedAt);
  const from = Date.now();
  const passed = (arrival: ReturnType<Origin["of"]>[number]): boolean => arrival.version !== undefined;
  for (;;) {
    const arrivals = origin.of(world.salt, name).filter((arrival) => arrival.startedAt > from && passed(arrival));
    const wrong = arrivals.find((arrival) => arrival.version !== version || arrival.serial !== serial);
    if (wrong !== undefined)
      throw new Error(
        `${name}: ${JSON.stringify(wrong)} though policy ${version} and credential ${serial} are in force`,
      );
    if (arrivals.length > 0) break;
    const last = origin.of(world.salt, name).findLast(passed);
    if (world.late(startedAt, CONVERGED_MS))
      throw new Error(`${name}: no request passes, the last was ${JSON.stringify(last)}`);
    await sleep(POLL_MS);
  }
  const seen = await execute(world, box, `echo "\${${EXTRA_KEY}:+set}"`, startedAt);
  if ((seen.trim() === "set") !== model.extra) throw new Error(`${name} sees ${EXTRA_KEY}: ${JSON.stringify(seen)}`);
  if (world.late(startedAt, CONVERGED_MS)) throw new Error(`${name} took ${world.since(startedAt).toFixed(0)} ms`);
}

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
import { type Change, HOSTS, type Origin, PATHS, REFUSED_HOST, violations } from "./origin.ts";
import { type OperationName, type PlannedOperation, planDelivery } from "./plan.ts";
import { HostProxy, type ProxyStrike } from "./proxy.ts";

/** One run of delivery: changes one after the other, strikes at messages between gateway and host, and a look at everything. */

/** Everything is in force so long after the last disturbance, at a reconcile a second. Milliseconds. */
const CONVERGED_MS = 6_000;
const CONFIG = "[openshell.gateway]\nconfig_consistency_check_interval_seconds = 1\n";
/** A message that an operation brings about comes within this, or does not come. Milliseconds. */
const MESSAGE_MS = 400;
const POLL_MS = 20;
const EXIT = 7;
const NO_WAIT = { headers: { "openshell-config-wait": "0" } };

export interface DeliveryOptions {
  readonly seed: number;
  readonly net: TestInternet;
  readonly origin: Origin;
  readonly counts: Counts;
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
    proxy = new HostProxy(join(world.runtime, "host.sock"), hooksOf(world));
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
  const report = [
    `delivery seed ${options.seed} as ${mode}: ${what}`,
    `  again: npm run test:faults -- --kind delivery --mode ${mode} --from ${options.seed} --seeds 1`,
    ...plan.map((line) => `  plan (${schedule.placement}) ${line}`),
    ...(world?.trace ?? []).map((line) => `  ${line}`),
    `  messages: ${[...(proxy?.passed ?? [])].map(([step, count]) => `${step} ${count}`).join(", ")}`,
    ...words.map((line) => `  ${line}`),
  ].join("\n");
  return { ok: problem === undefined, report };
}

function hooksOf(world: World): ConstructorParameters<typeof HostProxy>[1] {
  return {
    disturb: () => world.disturb(),
    note: (text) => world.note(text),
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
  finished: boolean;
}

type Acting = Box & { readonly world: World; readonly waits: boolean; readonly times: number };

const RUN: Readonly<Record<OperationName, (acting: Acting, box: Box) => Promise<void>>> = {
  create,
  flip,
  attach: (acting) => attachment(acting, true),
  detach: (acting) => attachment(acting, false),
  refuse,
  stop,
  start,
  finish,
};

async function drive(
  world: World,
  proxy: HostProxy,
  clients: readonly (readonly PlannedOperation[])[],
  { counts, origin }: DeliveryOptions,
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
    return { name, client, api: world.client(), model, changes: [], version: 0, serial: 0, finished: false };
  });
  const outcomes = await Promise.allSettled(
    clients.map(async (plan, client) => {
      const box = boxes[client]!;
      for (const { operation, strikes, pauseMs, waits, times } of plan) {
        const armed = strikes.map(({ phase, ...strike }): { readonly phase: string; readonly strike: ProxyStrike } => ({
          phase,
          strike: { ...strike, sandbox: box.name, struck: false },
        }));
        for (const { strike } of armed) proxy.arm(strike);
        world.note(`${operation} ${box.name}${times > 1 ? ` ${times} times` : ""}${waits ? "" : ", not waited for"}`);
        await RUN[operation](Object.assign(Object.create(box) as Box, { world, waits, times }), box);
        world.note(`${operation} ${box.name} done`);
        const end = performance.now() + MESSAGE_MS;
        while (armed.some(({ strike }) => !strike.struck) && performance.now() < end) await sleep(POLL_MS);
        for (const { phase, strike } of armed) {
          if (strike.struck) counts.add(strike.action, `${phase}:${strike.step}`);
          else proxy.disarm(strike);
        }
        await sleep(pauseMs);
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
  await Promise.all(boxes.map((box) => expectInForce(world, box, origin)));
  world.note("converged");
  for (const box of boxes) {
    const wrong = violations(box.changes, origin.of(world.salt, box.name));
    if (wrong.length > 0)
      throw new Error(`${box.name}: ${wrong.length} wrong requests:\n  ${wrong.slice(0, 5).join("\n  ")}`);
    world.note(`${box.name}: ${origin.of(world.salt, box.name).length} requests were right`);
  }
  await expectNothingLeft(world, boxes[0]!.api, { gateway: fresh.gateway, host: fresh.gateway });
}

/** Both hosts are bound in all versions: a process keeps the names of its credentials only while what they are for is the same. */
function policyOf(client: number, version: number, also: readonly string[] = []): string {
  const endpoint = (host: string, path: string): string => `
      - host: ${host}
        port: 443
        protocol: rest
        enforcement: enforce
        rules: [{ allow: { method: GET, path: ${path} } }]
        credential_binding: { provider: ${ownProvider(client)} }`;
  const endpoints = HOSTS.map((host, at) =>
    endpoint(host, at === version % HOSTS.length ? `/v${version % PATHS}` : "/never"),
  );
  return `version: 1
network_policies:
  flip:
    endpoints:${[...endpoints, ...also.map((host) => endpoint(host, "/**"))].join("")}
    binaries: [{ path: "/**" }]
`;
}

/** Rounds on the same connections, before a process of the probe ends. */
const ROUNDS = 6;

/** Asks for everything that any policy may allow, in turn, until it is told to end. */
function probe(salt: string, name: string): string {
  const urls = Array.from({ length: PATHS }, (_, at) => `https://${HOSTS[at % HOSTS.length]}/v${at}`);
  return `while [ ! -e "$HOME/end" ]; do
curl -s -m 5 -H "Salt: ${salt}" -H "Box: ${name}" -H "Started: $(date +%s%3N)" -H "Authorization: Bearer $OWN_KEY" \\
  ${Array<string>(ROUNDS).fill(urls.join(" ")).join(" ")} https://${REFUSED_HOST}/v0 >/dev/null 2>&1
sleep 0.05
done
exit ${EXIT}`;
}

async function create({ world, api, client, name }: Acting, { model }: Box): Promise<void> {
  world.model.sandboxes.set(name, model);
  const spec = {
    command: ["/bin/sh", "-c", probe(world.salt, name)],
    providers: [ownProvider(client)],
    policy: policyMessage(policyOf(client, 0)),
  };
  model.id = await world.attempt(`create ${name}`, async (requestId, signal) => {
    const { sandbox } = await api.createSandbox({ workspaceScope: SCOPE, name, requestId, spec }, signal);
    return sandbox!.metadata!.id;
  });
  await ready(world, api, name);
}

async function flip({ world, api, client, name, waits, times }: Acting, box: Box): Promise<void> {
  for (let left = times; left > 0; left--) {
    box.version++;
    const policy = policyMessage(policyOf(client, box.version));
    const changed: Change = { kind: "policy", value: box.version, sentAt: Date.now() };
    box.changes.push(changed);
    const version = await world.attempt(`policy ${box.version} of ${name}`, async (requestId, signal) => {
      const request = { workspaceScope: SCOPE, sandbox: name, policy, requestId };
      return (await api.updateConfig(request, { ...signal, ...NO_WAIT })).version;
    });
    box.model.revisions = version;
    if (waits) {
      await policyInForce(world, box);
      changed.acknowledgedAt = Date.now();
    }
    box.serial++;
    const provider = ownProvider(client);
    const rotated: Change = { kind: "credential", value: box.serial, sentAt: Date.now() };
    box.changes.push(rotated);
    await world.attempt(`provider ${provider} ${box.serial}`, async (requestId, signal) => {
      const change = {
        metadata: { name: provider },
        credentials: { [keyOf(provider)]: secretOf(world.salt, provider, box.serial) },
        config: { serial: String(box.serial) },
      };
      await api.updateProvider({ workspaceScope: SCOPE, provider: change, requestId }, signal);
    });
    world.model.serials.set(provider, box.serial);
    if (!waits) continue;
    await providerBecomes(world, box, provider, "READY");
    rotated.acknowledgedAt = Date.now();
  }
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
  await providerBecomes(world, { api, name }, EXTRA_PROVIDER, attached ? "READY" : "REVOKED", receipt!.receiptId);
}

/** Changes that are refused: before they are stored, and by the request's own form. */
async function refuse({ world, api, client, name, version }: Acting): Promise<void> {
  const policy = policyMessage(policyOf(client, version, [REFUSED_HOST]));
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

async function start({ world, api, name }: Acting, { model }: Box): Promise<void> {
  model.wish = "running";
  await world.attempt(`start ${name}`, async (requestId, signal) => {
    await api.startSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
  });
  await ready(world, api, name);
}

/** Lets the main process end by itself; its exit is what it gave. */
async function finish({ world, api, name }: Acting, box: Box): Promise<void> {
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

async function policyInForce(world: World, { api, name, model }: Box): Promise<void> {
  const startedAt = performance.now();
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
  receiptId = "",
): Promise<void> {
  const startedAt = performance.now();
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
async function execute(world: World, { api, name }: Box, script: string): Promise<string> {
  const startedAt = performance.now();
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

/** What was said last decides, everywhere. */
async function expectInForce(world: World, box: Box, origin: Origin): Promise<void> {
  const { api, name, client, model, version, serial } = box;
  if (box.finished) {
    const now = await world.look(api, name);
    if (now?.status?.exitCode !== EXIT) throw new Error(`${name} is ${describe(now)}, its exit was ${EXIT}`);
    return;
  }
  await world.until(api, name, "READY", (now) => now?.status?.phase === SandboxPhase.READY, CONVERGED_MS);
  await policyInForce(world, box);
  await providerBecomes(world, box, ownProvider(client), "READY");
  if (model.extra) await providerBecomes(world, box, EXTRA_PROVIDER, "READY");
  const startedAt = performance.now();
  const from = Date.now();
  for (;;) {
    const arrivals = origin.of(world.salt, name).filter((arrival) => arrival.startedAt > from);
    const wrong = arrivals.find((arrival) => arrival.path !== version % PATHS || arrival.serial !== serial);
    if (wrong !== undefined)
      throw new Error(
        `${name}: ${JSON.stringify(wrong)} though policy ${version} and credential ${serial} are in force`,
      );
    if (arrivals.length > 0) break;
    const last = origin.of(world.salt, name).at(-1);
    if (world.late(startedAt, CONVERGED_MS))
      throw new Error(`${name}: no request passes, the last was ${JSON.stringify(last)}`);
    await sleep(POLL_MS);
  }
  const seen = await execute(world, box, `echo "\${${EXTRA_KEY}:+set}"`);
  if ((seen.trim() === "set") !== model.extra) throw new Error(`${name} sees ${EXTRA_KEY}: ${JSON.stringify(seen)}`);
}

import { Code, type ConnectError } from "@connectrpc/connect";
import { DeletionOutcome, SandboxPhase } from "@openshell/api";
import { policyMessage } from "../support/api.ts";
import type { ModelSandbox } from "./model.ts";
import {
  EXTRA_PROVIDER,
  type OperationName,
  ownProvider,
  type PlannedOperation,
  POLICY_VARIANTS,
  SHARED_PROVIDER,
} from "./schedule.ts";
import { HOST_OF_SHARED, hostOfVariant, secretOf } from "./sites.ts";
import {
  type Api,
  CONVERGENCE_MS,
  describe,
  EXTRA_KEY,
  keyOf,
  policyOf,
  reasonOf,
  SCOPE,
  type World,
} from "./world.ts";

/**
 * The operations of a run. Each sends its request until it is answered, checks that what was answered is true, and keeps the
 * model. It throws for whatever no fault excuses.
 */

export interface Acting {
  readonly world: World;
  readonly api: Api;
  readonly client: number;
  readonly planned: PlannedOperation;
  /** Says what is being waited for. */
  readonly step: (step: string) => void;
}

export const RUN: Readonly<Record<OperationName, (acting: Acting) => Promise<void>>> = {
  create,
  stop,
  start,
  delete: remove,
  policy,
  exec,
  provider,
  attach: (acting) => attachment(acting, true),
  detach: (acting) => attachment(acting, false),
  request,
};

async function create({ world, api, client, planned, step }: Acting): Promise<void> {
  const { target: name, value: variant } = planned;
  const sandbox: ModelSandbox = {
    name,
    client,
    id: "",
    wish: "running",
    policy: variant,
    revisions: 1,
    extra: false,
    broken: undefined,
    executions: new Map(),
  };
  world.model.sandboxes.set(name, sandbox);
  const spec = {
    command: ["sleep", "86400"],
    providers: [ownProvider(client), SHARED_PROVIDER],
    policy: policyMessage(policyOf(client, variant)),
  };
  const ids = await answers(world, planned, `create ${name}`, async (requestId, signal) => {
    const { sandbox: made } = await api.createSandbox({ workspaceScope: SCOPE, name, requestId, spec }, signal);
    return made!.metadata!.id;
  });
  sandbox.id = ids[0]!;
  step("READY");
  await running(world, api, sandbox);
}

async function stop({ world, api, planned, step }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const name = sandbox.name;
  try {
    await answers(world, planned, `stop ${name}`, async (requestId, signal) => {
      await api.stopSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
      return name;
    });
  } catch (error) {
    // It had ended already.
    if (sandbox.broken === undefined || (error as ConnectError).code !== Code.FailedPrecondition) throw error;
  }
  sandbox.wish = "stopped";
  step("STOPPED");
  await world.until(api, name, "STOPPED", (now) => isOne(now?.status?.phase, stoppedPhases(sandbox)));
}

async function start({ world, api, planned, step }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const name = sandbox.name;
  // What ended the last run is over.
  sandbox.broken = undefined;
  sandbox.wish = "running";
  await answers(world, planned, `start ${name}`, async (requestId, signal) => {
    await api.startSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
    return name;
  });
  step("READY");
  await running(world, api, sandbox);
}

async function remove({ world, api, planned, step }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const name = sandbox.name;
  sandbox.wish = "deleted";
  try {
    const outcomes = await answers(world, planned, `delete ${name}`, async (requestId, signal) => {
      const { outcome } = await api.deleteSandbox({ workspaceScope: SCOPE, name, requestId }, signal);
      return DeletionOutcome[outcome]!;
    });
    const there = outcomes[0] === "COMPLETED" ? await world.look(api, name) : undefined;
    if (there !== undefined) throw new Error(`the deletion of ${name} was COMPLETED, and it is ${describe(there)}`);
  } catch (error) {
    // A deletion that lost its gateway is finished by the next one, and its answer is lost.
    const failure = error as ConnectError;
    const lost = failure.code === Code.FailedPrecondition && reasonOf(failure) === "REQUEST_OUTCOME_UNCERTAIN";
    if (!lost) throw error;
  }
  step("gone");
  await world.until(api, name, "gone", (now) => now === undefined);
}

async function policy({ world, api, client, planned, step }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const { name } = sandbox;
  const message = policyMessage(policyOf(client, planned.value));
  const versions = await answers(world, planned, `policy ${planned.value} of ${name}`, async (requestId, signal) => {
    const request = { workspaceScope: SCOPE, sandbox: name, policy: message, requestId };
    return (await api.updateConfig(request, signal)).version;
  });
  sandbox.policy = planned.value;
  sandbox.revisions++;
  if (versions[0] !== sandbox.revisions)
    throw new Error(`policy of ${name}: revision ${versions[0]} was answered for change ${sandbox.revisions}`);
  step("stored");
  const { revision } = await world.attempt(`policy of ${name}`, (_id, signal) =>
    api.getSandboxPolicyStatus({ workspaceScope: SCOPE, sandbox: name }, signal),
  );
  if (revision?.version !== sandbox.revisions)
    throw new Error(`the policy of ${name} is revision ${revision?.version}, answered was ${sandbox.revisions}`);
}

async function provider({ world, api, planned }: Acting): Promise<void> {
  const { target: name, value: serial } = planned;
  const change = {
    metadata: { name },
    credentials: { [keyOf(name)]: secretOf(world.salt, name, serial) },
    config: { serial: String(serial) },
  };
  await answers(world, planned, `provider ${name} ${serial}`, async (requestId, signal) => {
    const { provider: changed } = await api.updateProvider(
      { workspaceScope: SCOPE, provider: change, requestId },
      signal,
    );
    return changed!.config["serial"]!;
  });
  world.model.serials.set(name, serial);
}

async function attachment({ world, api, planned, step }: Acting, attached: boolean): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const { name } = sandbox;
  const what = `${planned.operation} ${EXTRA_PROVIDER} ${name}`;
  const changes = await answers(world, planned, what, async (requestId, signal) => {
    const change = { workspaceScope: SCOPE, sandbox: name, provider: EXTRA_PROVIDER, requestId };
    if (attached) return (await api.attachSandboxProvider(change, signal)).attached;
    return (await api.detachSandboxProvider(change, signal)).detached;
  });
  if (changes[0] !== true) throw new Error(`${what}: nothing was changed, it was answered`);
  sandbox.extra = attached;
  step("stored");
  const found = (await world.look(api, name))?.spec?.providers ?? [];
  if (found.includes(EXTRA_PROVIDER) !== attached) throw new Error(`${what}: ${name} has ${found.join(", ")}`);
}

/** The mark is written by the command itself: how often it ran is read at the end. */
async function exec({ world, api, planned, step }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  const { name } = sandbox;
  const mark = `${name}.${sandbox.executions.size}`;
  sandbox.executions.set(mark, "maybe");
  const command = ["/bin/sh", "-c", `echo ${mark} >> "$HOME/ran"; echo ${mark}; exit ${planned.value}`];
  try {
    const run = (): Promise<Collected> =>
      world.attempt(`exec ${mark}`, async (requestId, signal) => {
        step("call");
        const request = { workspaceScope: SCOPE, sandbox: name, command, noLoginShell: true, requestId };
        return await collect(api.execSandbox(request, signal), () => step("output"));
      });
    const result = await whenAttached(world, sandbox, run);
    const killed = sandbox.broken !== undefined && result.exitCode === 137;
    if (killed) return;
    if (result.exitCode !== planned.value || result.stdout !== `${mark}\n` || result.stderr !== "")
      throw new Error(`exec ${mark}: ${JSON.stringify(result)} in place of exit ${planned.value}`);
    sandbox.executions.set(mark, "once");
  } catch (error) {
    const failure = error as ConnectError;
    if (failure.code !== Code.FailedPrecondition) throw error;
    // Executions are not replayed: what came of one whose stream broke is not known.
    const unknown = ["REQUEST_OUTCOME_UNCERTAIN", "REQUEST_STREAM_UNAVAILABLE"].includes(reasonOf(failure));
    if (!unknown && sandbox.broken === undefined) throw error;
  }
}

/** Repeats what is refused because the sandbox waits for a host, as long as it may. Nothing of it was run then. */
async function whenAttached<T>(world: World, sandbox: ModelSandbox, run: () => Promise<T>): Promise<T> {
  const startedAt = performance.now();
  for (;;) {
    try {
      return await run();
    } catch (error) {
      const waits = /phase PROVISIONING \(SupervisorNotConnected/.test((error as Error).message);
      if (!waits || sandbox.broken !== undefined || world.late(startedAt, CONVERGENCE_MS)) throw error;
      await new Promise((resolve) => setTimeout(resolve, REQUEST_ATTEMPT_MS));
    }
  }
}

/** What the policy and the credentials allow, now. */
async function request({ world, api, planned }: Acting): Promise<void> {
  const sandbox = world.model.sandbox(planned.target);
  if (sandbox.broken === undefined) await expectRequests(world, api, sandbox, "");
}

const EXIT = 43;
const REQUEST_ATTEMPT_MS = 60;

/**
 * One request that the policy allows with the client's credential, one with everybody's, and one that it denies, in one
 * command; after `prefix`, whose output comes first. Tried until all are as the model says. Resolves with that output.
 */
export async function expectRequests(world: World, api: Api, sandbox: ModelSandbox, prefix: string): Promise<string> {
  const { name, client } = sandbox;
  const startedAt = performance.now();
  for (;;) {
    const denied = hostOfVariant((sandbox.policy + 1) % POLICY_VARIANTS);
    const serials = [ownProvider(client), SHARED_PROVIDER].map((one) => `${one} ${world.model.serials.get(one)}`);
    const script = `${prefix}
echo --
echo "extra \${${EXTRA_KEY}:+set}"
curl -s -m 10 -H "Authorization: Bearer $OWN_KEY" -w '\\n' https://${hostOfVariant(sandbox.policy)}/ \
  --next -s -m 10 -H "Authorization: Bearer $SHARED_KEY" -w '\\n' https://${HOST_OF_SHARED}/ \
  --next -s -m 10 -o /dev/null -w '%{http_code}\\n' https://${denied}/
exit ${EXIT}`;
    let problem: string;
    try {
      const command = ["/bin/sh", "-c", script];
      const result = await world.attempt(`requests of ${name}`, (_id, signal) =>
        collect(api.execSandbox({ workspaceScope: SCOPE, sandbox: name, command, noLoginShell: true }, signal)),
      );
      const [before, after = ""] = result.stdout.split("--\n");
      const expected = [sandbox.extra ? "extra set" : "extra ", ...serials, "403"].join("\n");
      if (result.exitCode === EXIT && after.trim() === expected) return before!;
      problem = `${JSON.stringify(result)} in place of ${JSON.stringify(expected)}`;
    } catch (error) {
      if (sandbox.broken !== undefined) return "";
      if ((error as ConnectError).code !== Code.FailedPrecondition) throw error;
      problem = (error as Error).message;
    }
    if (sandbox.broken !== undefined) return "";
    if (world.late(startedAt, CONVERGENCE_MS))
      throw new Error(`requests of ${name} (policy ${sandbox.policy}): ${problem}`);
    world.note(`requests of ${name}: ${problem}`);
    await new Promise((resolve) => setTimeout(resolve, REQUEST_ATTEMPT_MS));
  }
}

interface Collected {
  readonly stdout: string;
  readonly stderr: string;
  readonly exitCode: number | undefined;
}

async function collect(events: ReturnType<Api["execSandbox"]>, onOutput = (): void => {}): Promise<Collected> {
  const output = { stdout: "", stderr: "" };
  let exitCode: number | undefined;
  for await (const { payload } of events) {
    if (payload.case === "exit") exitCode = payload.value.exitCode;
    else if (payload.case !== undefined) {
      output[payload.case] += Buffer.from(payload.value.data).toString();
      onOutput();
    }
  }
  return { ...output, exitCode };
}

/** The answer, and that of a repetition when one is planned: they are the same. */
async function answers<T>(
  world: World,
  planned: PlannedOperation,
  what: string,
  call: (requestId: string, signal: { timeoutMs: number }) => Promise<T>,
): Promise<readonly T[]> {
  let id = "";
  const first = await world.attempt(what, async (requestId, signal) => {
    id = requestId;
    return await call(requestId, signal);
  });
  if (!planned.again) return [first];
  const second = await world.attempt(`${what} again`, (_id, signal) => call(id, signal));
  if (second !== first)
    throw new Error(`${what}: ${second} was answered to the repetition of what ${first} was before`);
  return [first, second];
}

async function running(world: World, api: Api, sandbox: ModelSandbox): Promise<void> {
  const found = await world.until(api, sandbox.name, "READY", (now) =>
    isOne(now?.status?.phase, sandbox.broken === undefined ? BEGUN : [...BEGUN, SandboxPhase.ERROR]),
  );
  const phase = found?.status?.phase;
  if (phase === SandboxPhase.ERROR && sandbox.broken === undefined)
    throw new Error(`${sandbox.name} is ${describe(found)}`);
}

/** ERROR ends the wait at once. */
const BEGUN = [SandboxPhase.READY, SandboxPhase.ERROR];

function stoppedPhases(sandbox: ModelSandbox): readonly SandboxPhase[] {
  return sandbox.broken === undefined ? [SandboxPhase.STOPPED] : [SandboxPhase.STOPPED, SandboxPhase.ERROR];
}

function isOne(phase: SandboxPhase | undefined, phases: readonly SandboxPhase[]): boolean {
  return phase !== undefined && phases.includes(phase);
}

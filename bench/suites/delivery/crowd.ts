import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell } from "@openshell/api";
import { policyMessage, SCOPE } from "../../../tests/support/api.ts";
import type { GrpcClient } from "../../support/grpc.ts";
import { benchPolicy } from "../../support/origin.ts";
import { cpuOf, memory } from "../../support/processes.ts";
import { judge } from "../../support/report.ts";
import type { DeliveryCounts, Simulation } from "../../support/simulation.ts";
import type { Stage } from "../../support/stage.ts";
import { median } from "../../support/statistics.ts";

const SUPERVISORS = 2000;
const ROUNDS = 3;
/** For garbage of creations to be collected, and pages to be given back. */
const SETTLE_MS = 12_000;
const IDLE_MS = 10_000;
/** Of a machine that is busy otherwise. */
const ACKNOWLEDGED_LIMIT_MS = 180_000;
/** Every look makes the gateway count all of its metrics. */
const POLL_MS = 100;
/** Attached to each. */
export const PROVIDER = "shared";
const SETTING = "ocsf_json_enabled";

interface Held {
  /** Pages, as the machine sees them, MB. */
  readonly pages: number;
  /** Without garbage, MB. */
  readonly live: number;
}

/** Very many connected supervisors: what they cost the gateway, and how long it takes to tell all of them something. */
export async function crowd(stage: Stage, simulation: Simulation): Promise<readonly string[]> {
  const { gateway } = simulation;
  await gateway.createProvider(PROVIDER, { TOKEN: "0" });
  const before = await held(simulation);
  const startedAt = performance.now();
  const names = await simulation.create(SUPERVISORS, { policy: policyMessage(benchPolicy(1)), providers: [PROVIDER] });
  const createdMs = performance.now() - startedAt;
  const { sessions } = await simulation.counts();
  if (sessions !== SUPERVISORS) throw new Error(`${sessions} sessions of ${SUPERVISORS}`);
  await sleep(SETTLE_MS);
  const connected = await held(simulation);
  const cpuBefore = cpuOf(gateway.pid);
  await sleep(IDLE_MS);
  const idle = (cpuOf(gateway.pid) - cpuBefore) / (IDLE_MS / 1000);

  const changes = { setting: set, provider: rotate };
  const times = { setting: [] as number[], provider: [] as number[] };
  const cpus = { setting: [] as number[], provider: [] as number[] };
  let peak = 0;
  for (let round = 1; round <= ROUNDS; round += 1) {
    for (const kind of ["setting", "provider"] as const) {
      const spent = cpuOf(gateway.pid);
      times[kind].push(await acknowledged(simulation, (client) => changes[kind](client, round)));
      cpus[kind].push(cpuOf(gateway.pid) - spent);
      peak = Math.max(peak, memory().gateway);
    }
  }
  await sleep(SETTLE_MS);
  const after = await held(simulation);
  const one = await alone(simulation, names[0]!);

  const { report } = stage;
  report(
    judge(
      {
        id: "delivery/memory-2000",
        what: `gateway with ${SUPERVISORS} connected supervisors (PSS)`,
        measured: after.pages,
        unit: "MB",
        reference: { what: "with none", value: before.pages },
        details: { "before changes": connected.pages, "right after a change": peak, "in use": after.live },
      },
      { text: "≤ 400 MB", atMost: 400 },
    ),
  );
  report({
    id: "delivery/memory-supervisor",
    what: "gateway: memory in use of one more connected sandbox",
    measured: ((after.live - before.live) * 1000) / SUPERVISORS,
    unit: "kB",
    details: {
      "before changes": ((connected.live - before.live) * 1000) / SUPERVISORS,
      PSS: ((after.pages - before.pages) * 1000) / SUPERVISORS,
    },
  });
  for (const [kind, what, id] of [
    ["setting", "a setting of the gateway changed", "delivery/setting-2000"],
    ["provider", `a credential that ${SUPERVISORS} have changed`, "delivery/provider-2000"],
  ] as const) {
    report(
      judge(
        {
          id,
          what: `${what} → acknowledged by ${SUPERVISORS}`,
          measured: median(times[kind]),
          unit: "ms",
          reference: { what: "a policy of one of them", value: one },
          details: { slowest: Math.max(...times[kind]), "CPU of the gateway": median(cpus[kind]) },
        },
        { text: "≤ 3 s", atMost: 3000 },
      ),
    );
  }
  report({
    id: "delivery/idle-cpu-2000",
    what: `CPU of the gateway with ${SUPERVISORS} idle supervisors`,
    measured: idle,
    unit: "ms/s",
  });
  report({
    id: "delivery/create-2000",
    what: `${SUPERVISORS} sandboxes without processes created → READY`,
    measured: createdMs / SUPERVISORS,
    unit: "ms",
  });
  return names;
}

async function held({ live }: Simulation): Promise<Held> {
  return { live: (await live.read()).gateway, pages: memory().gateway };
}

/** A setting of all sandboxes, which changes one component of each. */
async function set(client: GrpcClient, round: number): Promise<void> {
  const settingValue = { value: { case: "boolValue", value: round % 2 === 1 } } as const;
  await client.unary(OpenShell.method.updateConfig, { global: true, settingKey: SETTING, settingValue });
}

/** A new credential of the shared provider: a new identity of both components of each. */
async function rotate(client: GrpcClient, round: number): Promise<void> {
  const provider = { metadata: { name: PROVIDER }, credentials: { TOKEN: String(round) } };
  await client.unary(OpenShell.method.updateProvider, { workspaceScope: SCOPE, provider });
}

/** From the call until an outcome of every sandbox's configuration is stored, and nothing more is to be sent. */
async function acknowledged(simulation: Simulation, change: (client: GrpcClient) => Promise<void>): Promise<number> {
  using client = simulation.client();
  const configurations = ({ results }: DeliveryCounts): number => results.get("config applied") ?? 0;
  const before = configurations(await simulation.counts());
  const begin = performance.now();
  await change(client);
  for (;;) {
    const now = await simulation.counts();
    const took = performance.now() - begin;
    if (configurations(now) - before >= SUPERVISORS && now.dirty === 0) return took;
    if (took > ACKNOWLEDGED_LIMIT_MS)
      throw new Error(
        `not acknowledged by all: ${JSON.stringify({ ...now, results: Object.fromEntries(now.results) })}`,
      );
    await sleep(POLL_MS);
  }
}

/** Median of a policy change of one sandbox, called and acknowledged. */
async function alone(simulation: Simulation, sandbox: string): Promise<number> {
  using client = simulation.client();
  const times: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const policy = policyMessage(benchPolicy(1, `/alone/${round}`));
    const begin = performance.now();
    await client.unary(OpenShell.method.updateConfig, { workspaceScope: SCOPE, sandbox, policy });
    times.push(performance.now() - begin);
  }
  return median(times);
}

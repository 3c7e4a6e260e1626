import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { OpenShell } from "@openshell/api";
import { LOG_LINES } from "@openshell/gateway/compute/limits.ts";
import { policyMessage, SCOPE, type TestSandbox } from "../tests/support/api.ts";
import { insideTestNetwork } from "../tests/support/enter.ts";
import { TestInternet } from "../tests/support/internet/index.ts";
import { SIMULATED_FULL } from "./simulation/names.ts";
import { againInTestNetwork } from "./support/enter.ts";
import { PARTS } from "./support/live-memory.ts";
import { memory } from "./support/processes.ts";
import { Simulation } from "./support/simulation.ts";
import { growth, type Sample } from "./support/trend.ts";

/**
 * One change a second for half an hour: memory of gateway and host stays flat, and every change is acknowledged.
 *
 *     npm run test:soak [-- --minutes N] [--supervisors N] [--sandboxes N]
 *
 * By turns the policy of a real sandbox and that of a simulated one; every tenth time a credential of a provider that all
 * of them share. The gateway keeps 2,000 log lines of each sandbox: all of them begin with as many, so that what grows
 * is no log that fills up.
 * Memory is looked at once a minute, after a collection (in use) and as the machine sees it (PSS). Its growth is that of
 * the straight line through the samples of all but the first fifth of the time, in which pools and caches fill. Exit status
 * 1 when it exceeds the bound, or a change was not acknowledged.
 */
const DEFAULTS = { minutes: "30", supervisors: "50", sandboxes: "4" };
const CHANGE_MS = 1000;
const SAMPLE_MS = 60_000;
/** Samples of a short run: fewer show no line. */
const LEAST_SAMPLES = 10;
const WARM_UP_SHARE = 0.2;
/** Of the memory at the beginning of the line, over its whole length. Pages come and go in steps of megabytes. */
const MAX_GROWTH = { live: 0.05, pages: 0.25 };
const PROVIDER = "shared";
/** Of the changes, every so many is one of the provider. */
const PROVIDER_EVERY = 10;
/** The simulated sandboxes' logs are full by then. */
const FILLED_MS = 12_000;
/** Those of the real ones fill by quick changes. */
const FILL_LIMIT_MS = 300_000;
const QUIET_LIMIT_MS = 30_000;

const policyFor = (round: number): string => `
version: 1
network_policies:
  soak:
    endpoints:
      - {host: soak.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: "/round/${round}"}}]}
    binaries: [{path: "/**"}]
`;

function wanted(): { readonly minutes: number; readonly supervisors: number; readonly sandboxes: number } {
  const options = {
    minutes: { type: "string" },
    supervisors: { type: "string" },
    sandboxes: { type: "string" },
  } as const;
  const { values } = parseArgs({ options });
  const number = (name: keyof typeof DEFAULTS, most: number): number => {
    const value = Number(values[name] ?? DEFAULTS[name]);
    if (value > 0 && value <= most) return value;
    console.error(`--${name} takes a number up to ${most}`);
    process.exit(2);
  };
  return {
    minutes: number("minutes", 24 * 60),
    supervisors: number("supervisors", 5000),
    sandboxes: number("sandboxes", 100),
  };
}

async function main(): Promise<number> {
  const { minutes, supervisors, sandboxes } = wanted();
  if (!insideTestNetwork()) return againInTestNetwork(import.meta.filename);
  await using net = await TestInternet.start();
  await using simulation = await Simulation.start(net);
  const { gateway } = simulation;
  await gateway.createProvider(PROVIDER, { TOKEN: "0" });
  const real: TestSandbox[] = [];
  for (let index = 0; index < sandboxes; index += 1)
    real.push(await gateway.create({ policy: policyFor(0), providers: [PROVIDER] }));
  const spec = { policy: policyMessage(policyFor(0)), providers: [PROVIDER] };
  const simulated = await simulation.create(supervisors, spec, SIMULATED_FULL);
  await sleep(FILLED_MS);
  console.log(
    `${supervisors} simulated supervisors and ${sandboxes} sandboxes, a change a second for ${minutes} minutes`,
  );

  using client = simulation.client();
  const failures: string[] = [];
  const change = async (round: number): Promise<void> => {
    if (round % PROVIDER_EVERY === PROVIDER_EVERY - 1) {
      const provider = { metadata: { name: PROVIDER }, credentials: { TOKEN: String(round) } };
      await client.unary(OpenShell.method.updateProvider, { workspaceScope: SCOPE, provider });
      return;
    }
    const turn = Math.floor(round / 2);
    const sandbox = round % 2 === 0 ? real[turn % real.length]!.name : simulated[turn % simulated.length]!;
    const request = { workspaceScope: SCOPE, sandbox };
    const { version } = await client.unary(OpenShell.method.updateConfig, {
      ...request,
      policy: policyMessage(policyFor(round)),
    });
    const { activeVersion } = await client.unary(OpenShell.method.getSandboxPolicyStatus, request);
    if (activeVersion < version) throw new Error(`${sandbox} decides by version ${activeVersion}, not ${version}`);
  };
  console.log("filling the logs of the sandboxes");
  await Promise.all(real.map((sandbox, index) => fill(simulation, sandbox.name, index)));
  const samples: Sample[] = [];
  const startedAt = performance.now();
  const totalMs = minutes * 60_000;
  const sampleMs = Math.min(SAMPLE_MS, totalMs / LEAST_SAMPLES);
  const calls = new Set<Promise<void>>();
  let rounds = 0;
  for (;;) {
    const passed = performance.now() - startedAt;
    if (passed >= (samples.length + 1) * sampleMs) {
      const live = await simulation.live.read();
      const sample = { minutes: passed / 60_000, live, pages: memory() };
      samples.push(sample);
      console.log(lineOf(sample));
    }
    if (passed >= totalMs) break;
    if (passed >= rounds * CHANGE_MS) {
      const round = rounds++;
      const call = change(round).catch((error: unknown) => void failures.push(`change ${round}: ${String(error)}`));
      calls.add(call);
      void call.then(() => calls.delete(call));
    }
    await sleep(20);
  }
  await Promise.all(calls);
  const end = performance.now() + QUIET_LIMIT_MS;
  let { dirty } = await simulation.counts();
  while (dirty > 0 && performance.now() < end) {
    await sleep(100);
    ({ dirty } = await simulation.counts());
  }
  if (dirty > 0) failures.push(`${dirty} sessions still have something to be sent to`);
  console.log(`${rounds} changes, ${failures.length} failures`);
  for (const failure of failures.slice(0, 10)) console.error(failure);
  return [failures.length === 0, ...judged(samples)].every(Boolean) ? 0 : 1;
}

/** Changes the policy of a sandbox until the gateway keeps as many lines of its log as it ever does. */
async function fill(simulation: Simulation, sandbox: string, index: number): Promise<void> {
  using client = simulation.client();
  const request = { workspaceScope: SCOPE, sandbox };
  const end = performance.now() + FILL_LIMIT_MS;
  for (let round = 0; performance.now() < end; round += 1) {
    const policy = policyMessage(policyFor(-1 - index - round * 1000));
    await client.unary(OpenShell.method.updateConfig, { ...request, policy });
    if (round % 50 > 0) continue;
    const { logs } = await client.unary(OpenShell.method.getSandboxLogs, { ...request, lines: LOG_LINES });
    if (logs.length >= LOG_LINES) return;
  }
  throw new Error(`the log of ${sandbox} is not full after ${FILL_LIMIT_MS / 1000} s`);
}

function lineOf({ minutes, live, pages }: Sample): string {
  const parts = PARTS.map((part) => `${part} ${live[part].toFixed(1)} MB in use, PSS ${pages[part].toFixed(1)} MB`);
  return `${minutes.toFixed(1).padStart(6)} min  ${parts.join("  ")}`;
}

/** Prints each slope beside its bound; false for those that exceed it. */
function judged(samples: readonly Sample[]): readonly boolean[] {
  const last = samples.at(-1)!.minutes;
  const counted = samples.filter(({ minutes }) => minutes >= last * WARM_UP_SHARE);
  return PARTS.flatMap((part) =>
    (["live", "pages"] as const).map((kind) => {
      const line = growth(counted.map((sample) => ({ x: sample.minutes, y: sample[kind][part] })));
      const met = line.total <= line.first * MAX_GROWTH[kind];
      const name = kind === "live" ? "in use" : "PSS";
      const perHour = line.slope * 60;
      console.log(
        `${part}, ${name}: ${line.first.toFixed(1)} MB, ${perHour.toFixed(2)} MB an hour, ${((line.total / line.first) * 100).toFixed(1)} % in ${(last * (1 - WARM_UP_SHARE)).toFixed(0)} min, at most ${MAX_GROWTH[kind] * 100} %: ${met ? "ok" : "GROWS"}`,
      );
      return met;
    }),
  );
}

process.exitCode = await main();

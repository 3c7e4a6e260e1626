import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { PolicyStatus, SandboxPhase } from "@openshell/api";
import { shortId } from "@openshell/drivers/local/launch.ts";
import { mode } from "../support/mode.ts";
import { filesWithSecrets } from "../support/secrets.ts";
import type { ModelSandbox } from "./model.ts";
import { expectRequests } from "./operations.ts";
import { EXTRA_PROVIDER } from "./schedule.ts";
import { secretOf } from "./sites.ts";
import { type Api, arguments_, CONVERGENCE_MS, describe, list, SCOPE, type World } from "./world.ts";

/** What must hold when all faults are over: the gateway says what the model says, sandboxes do so, and nothing else is there. */

/** Descriptors that a part may have beyond those of a fresh one: connections of clients and pools. */
const MORE_DESCRIPTORS = 12;
const GONE_MS = 5_000;
const POLL_MS = 20;

export async function expectConverged(world: World, api: Api): Promise<void> {
  const { sandboxes } = await world.attempt("list", (_id, signal) =>
    api.listSandboxes({ workspaceScope: SCOPE, pageSize: 100 }, signal),
  );
  const found = sandboxes.map(({ metadata }) => `${metadata!.name} ${metadata!.id}`).sort();
  const wanted = world.model.existing().map(({ name, id }) => `${name} ${id}`);
  same("sandboxes", found, wanted.sort());
  const { providers } = await world.attempt("providers", (_id, signal) =>
    api.listProviders({ workspaceScope: SCOPE, pageSize: 100 }, signal),
  );
  const serials = providers.map(({ metadata, config }) => `${metadata!.name} ${config["serial"]}`).sort();
  same("providers", serials, [...world.model.serials].map(([name, serial]) => `${name} ${serial}`).sort());
  await Promise.all(world.model.existing().map((sandbox) => expectSandbox(world, api, sandbox)));
  world.note("converged");
}

async function expectSandbox(world: World, api: Api, sandbox: ModelSandbox): Promise<void> {
  const { name, broken, wish } = sandbox;
  const phases = broken === undefined ? [wish === "running" ? SandboxPhase.READY : SandboxPhase.STOPPED] : BROKEN;
  const wanted = phases.map((phase) => SandboxPhase[phase]).join(" or ");
  const reached = (phase: SandboxPhase | undefined): boolean => phase !== undefined && phases.includes(phase);
  const found = await world.until(api, name, wanted, (now) => reached(now?.status?.phase), CONVERGENCE_MS);
  const ready = found!.status!.conditions.find(({ type }) => type === "Ready");
  if (ready?.reason === "MainProcessFailed" && (broken !== "agent" || found!.status!.exitCode !== 137))
    throw new Error(`${name} says ${describe(found)}; killed was: ${broken ?? "nothing"}`);
  if (found!.spec!.providers.includes(EXTRA_PROVIDER) !== sandbox.extra)
    throw new Error(`${name} has the providers ${found!.spec!.providers.join(", ")}`);
  const { revision, activeVersion } = await world.attempt(`policy of ${name}`, (_id, signal) =>
    api.getSandboxPolicyStatus({ workspaceScope: SCOPE, sandbox: name }, signal),
  );
  if (revision?.version !== sandbox.revisions)
    throw new Error(`${name} has policy revision ${revision?.version}, not ${sandbox.revisions}`);
  if (broken !== undefined || wish !== "running") return;
  const ran = await expectRequests(world, api, sandbox, 'cat "$HOME/ran" 2>/dev/null');
  expectExecutions(sandbox, ran);
  if (activeVersion === sandbox.revisions && revision.status === PolicyStatus.LOADED) return;
  // The acknowledgement of the last one may just be on its way.
  const startedAt = performance.now();
  for (;;) {
    const now = await api.getSandboxPolicyStatus({ workspaceScope: SCOPE, sandbox: name });
    if (now.activeVersion === sandbox.revisions && now.revision?.status === PolicyStatus.LOADED) return;
    if (world.late(startedAt, CONVERGENCE_MS)) {
      const status = PolicyStatus[now.revision?.status ?? 0];
      throw new Error(`policy of ${name}: ${status}, active ${now.activeVersion}, stored ${sandbox.revisions}`);
    }
    await sleep(POLL_MS);
  }
}

/** One that was struck before its main process ran is started again, and is READY then. */
const BROKEN = [SandboxPhase.ERROR, SandboxPhase.STOPPED, SandboxPhase.READY];

/** Each command ran once when an exit was reported, and at most once in any case. */
function expectExecutions(sandbox: ModelSandbox, ran: string): void {
  if (sandbox.broken !== undefined) return;
  const counts = Map.groupBy(ran.split("\n").filter(Boolean), (mark) => mark);
  for (const [mark, outcome] of sandbox.executions) {
    const times = counts.get(mark)?.length ?? 0;
    if (times > 1 || (times === 0 && outcome === "once"))
      throw new Error(`exec ${mark} (${outcome}) ran ${times} times`);
    counts.delete(mark);
  }
  if (counts.size > 0) throw new Error(`ran in ${sandbox.name} though nobody asked: ${[...counts.keys()].join(", ")}`);
}

/** Deletes what is left and looks for everything that a sandbox is made of. */
export async function expectNothingLeft(world: World, api: Api, fresh: Readonly<Record<Part, number>>): Promise<void> {
  await Promise.all(
    world.model.existing().map(async ({ name }) => {
      await world.attempt(`delete ${name}`, (_id, signal) =>
        api.deleteSandbox({ workspaceScope: SCOPE, name }, signal).catch((error) => {
          throw error;
        }),
      );
      await world.until(api, name, "gone", (now) => now === undefined, CONVERGENCE_MS);
    }),
  );
  const end = performance.now() + GONE_MS;
  for (;;) {
    const left = leftovers(world, fresh);
    if (left.length === 0) break;
    if (performance.now() > end) throw new Error(`left behind:\n  ${left.join("\n  ")}`);
    await sleep(POLL_MS);
  }
  const values = [...world.model.serials].flatMap(([name, last]) =>
    Array.from({ length: last + 1 }, (_, serial) => secretOf(world.salt, name, serial)),
  );
  const { config, state, runtime } = world.user.home;
  const leaked = filesWithSecrets([config, state, runtime], values);
  if (leaked.length > 0) throw new Error(`secrets in files of openshell:\n  ${leaked.join("\n  ")}`);
}

type Part = "gateway" | "host";

/** Of processes that have nothing to do but live. A user's cannot be looked into: they count as none. */
export function descriptors(world: World): Readonly<Record<Part, number>> {
  const count = (pid: number | undefined): number => {
    try {
      return mode === "root" && pid !== undefined ? readdirSync(`/proc/${pid}/fd`).length : 0;
    } catch {
      return 0;
    }
  };
  return { gateway: count(world.gatewayPid()), host: Math.max(0, ...world.hostPids().map(count)) };
}

function leftovers(world: World, fresh: Readonly<Record<Part, number>>): readonly string[] {
  const left: string[] = [];
  const gateway = world.gatewayPid();
  const hosts = new Set(world.hostPids());
  for (const pid of world.user.processes()) {
    if (pid !== gateway && !hosts.has(pid)) left.push(`process ${pid} ${arguments_(pid).join(" ")}`);
  }
  // A host that may hold a single sandbox is of no use after it.
  if (world.schedule.placement === "sandbox" && hosts.size > 0) left.push(`hosts: ${[...hosts].join(", ")}`);
  for (const folder of [join(world.state, "sandboxes"), join(world.runtime, "s")])
    for (const name of list(folder)) left.push(`file ${join(folder, name)}`);
  const home = world.user.home.folder;
  for (const line of readFileSync("/proc/self/mountinfo", "utf8").split("\n")) {
    const point = line.split(" ")[4] ?? "";
    if (point.startsWith(`${home}/`) && point !== world.user.home.state) left.push(`mount ${point}`);
  }
  const sockets = readFileSync("/proc/self/net/unix", "utf8").split("\n");
  for (const path of new Set(sockets.map((line) => line.trim().split(/\s+/)[7] ?? "")))
    if (path.startsWith(`${join(world.runtime, "s")}/`)) left.push(`socket ${path}`);
  const mark = `openshell-${shortId(world.state)}-`;
  for (const path of cgroups("/sys/fs/cgroup", 0)) if (path.includes(mark)) left.push(`control group ${path}`);
  const now = descriptors(world);
  for (const part of ["gateway", "host"] as const) {
    if (now[part] > fresh[part] + MORE_DESCRIPTORS)
      left.push(`descriptors: the ${part} has ${now[part]}, a fresh one ${fresh[part]}`);
  }
  return left;
}

function cgroups(folder: string, depth: number): readonly string[] {
  let entries: readonly string[];
  try {
    entries = readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => join(folder, entry.name));
  } catch {
    return [];
  }
  return depth > 8 ? entries : entries.flatMap((entry) => [entry, ...cgroups(entry, depth + 1)]);
}

function same(what: string, found: readonly string[], wanted: readonly string[]): void {
  if (found.join("\n") !== wanted.join("\n"))
    throw new Error(`${what}: ${JSON.stringify(found)} in place of ${JSON.stringify(wanted)}`);
}

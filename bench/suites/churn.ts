import { readdirSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { leaksSince, takeInventory } from "../../tests/support/leaks.ts";
import { LiveMemory, PARTS, type Part } from "../support/live-memory.ts";
import { memory, partProcesses } from "../support/processes.ts";
import { judge } from "../support/report.ts";
import { type Stage, Worker } from "../support/stage.ts";
import type { Answer, Job } from "../workers/api.ts";
import { type ChurnAnswer, type ChurnJob, STEPS } from "../workers/churn.ts";

const CLIENTS = 16;
/** Kernel objects go a little after the process that held them. */
const GONE_WITHIN_MS = 5000;
/** Garbage of a round is collected, and its pages are given back, when a process has had nothing to do for ten seconds or more. */
const SETTLE_MS = 16_000;
const LOOK_MS = 2000;
/** Memory may grow by so much of itself. */
const MEMORY_SHARE = 1.05;
/** Printed; all are counted. */
const NAMED_LEAKS = 20;
const LEAK_KINDS = ["processes", "mounts", "cgroups", "sockets", "links", "files", "descriptors"];
const STEP_NAMES = {
  create: "CreateSandbox → READY among others",
  exec: "a command in it",
  delete: "DeleteSandbox → gone",
} as const;

/**
 * Sandboxes created, used and deleted by 16 clients: what a step takes while others go on, and what stays behind. The
 * first round is as long as the measured one: code is compiled, pools and caches fill in it.
 */
export async function churn(stage: Stage): Promise<void> {
  using live = new LiveMemory(stage.build);
  await using gateway = await stage.freshGateway();
  // It keeps the host, which otherwise ends when it has nothing to do: the same processes before and after.
  await using _keeper = await gateway.create({ name: "bench-churn-keeper" });
  using worker = new Worker("churn");
  using plain = new Worker("api");
  const round = (prefix: string): Promise<ChurnAnswer> => {
    const socket = gateway.folders.userSocket;
    return worker.run({ socket, clients: CLIENTS, sandboxes: stage.sandboxes, prefix } satisfies ChurnJob);
  };
  const first = await round("warm");
  const before = { memory: await settled(), live: await live.read(), descriptors: openDescriptors() };
  const inventory = takeInventory([gateway.folders.state, gateway.folders.runtime]);
  const reference = await plain.run<Answer>({ kind: "spawn", clients: CLIENTS, seconds: stage.seconds } satisfies Job);
  const answer = await round("churn");
  const leaks = await untilGone(() => [
    ...leaksSince(inventory),
    ...Array.from({ length: Math.max(0, openDescriptors() - before.descriptors) }, () => "descriptors: one more"),
  ]);
  const after = { memory: await settled(), live: await live.read() };
  reportSteps(stage, answer, reference);
  reportMemory(stage, before, after);
  reportLeft(stage, [...first.failures, ...answer.failures], first.failed + answer.failed, leaks);
}

function reportSteps({ report, sandboxes }: Stage, answer: ChurnAnswer, reference: Answer): void {
  report({
    id: "churn/rate",
    what: `${sandboxes} sandboxes created, used and deleted by ${CLIENTS} clients`,
    measured: answer.perSecond,
    unit: "/s",
    reference: { what: "plain spawn", value: reference.perSecond },
    details: { "p50 ms": answer.p50, "p99 ms": answer.p99 },
  });
  for (const step of STEPS) {
    const { p50, p95, p99 } = answer.steps[step];
    report({
      id: `churn/${step}`,
      what: `${STEP_NAMES[step]}, ${CLIENTS} clients, p50`,
      measured: p50,
      unit: "ms",
      reference: { what: "plain spawn", value: reference.p50 },
      details: { p95, p99 },
    });
  }
}

interface Held {
  /** Pages, as the machine sees them. */
  readonly memory: Readonly<Record<Part, number>>;
  /** Without garbage. */
  readonly live: Readonly<Record<Part, number>>;
}

function reportMemory({ report, sandboxes }: Stage, before: Held, after: Held): void {
  for (const part of PARTS) {
    const value = before.live[part];
    report(
      judge(
        {
          id: `churn/memory-${part}`,
          what: `${part}: memory in use after ${sandboxes} more sandboxes`,
          measured: after.live[part],
          unit: "MB",
          reference: { what: "before", value },
          details: { "PSS before": before.memory[part], "PSS after": after.memory[part] },
        },
        { text: "≤ before + 5 %", atMost: value * MEMORY_SHARE },
      ),
    );
  }
  report(
    judge(
      { id: "churn/gateway-memory", what: "gateway after its load (PSS)", measured: after.memory.gateway, unit: "MB" },
      { text: "≤ 120 MB", atMost: 120 },
    ),
  );
}

function reportLeft({ report }: Stage, failures: readonly string[], failed: number, leaks: readonly string[]): void {
  for (const failure of failures) console.error(`churn: ${failure}`);
  for (const leak of leaks.slice(0, NAMED_LEAKS)) console.error(`churn left behind: ${leak}`);
  report(
    judge(
      { id: "churn/failed", what: "steps that went wrong, both rounds", measured: failed, unit: "count" },
      { text: "0", atMost: 0 },
    ),
  );
  const count = (kind: string): number => leaks.filter((leak) => leak.startsWith(`${kind}: `)).length;
  report(
    judge(
      {
        id: "churn/left",
        what: "left behind: processes, mounts, control groups, sockets, links, files, descriptors",
        measured: leaks.length,
        unit: "count",
        details: Object.fromEntries(LEAK_KINDS.map((kind) => [kind, count(kind)])),
      },
      { text: "0", atMost: 0 },
    ),
  );
}

/** The least that each part has within the time in which garbage is collected. */
async function settled(): Promise<Record<Part, number>> {
  const end = performance.now() + SETTLE_MS;
  const least = { gateway: Number.POSITIVE_INFINITY, host: Number.POSITIVE_INFINITY };
  while (performance.now() < end) {
    await sleep(LOOK_MS);
    const now = memory();
    for (const part of PARTS) least[part] = Math.min(least[part], now[part]);
  }
  return least;
}

/** Of gateway and host; 0 for a process that does not let this user look. */
function openDescriptors(): number {
  let open = 0;
  for (const { pid, role } of partProcesses()) {
    if (role === "init") continue;
    try {
      open += readdirSync(`/proc/${pid}/fd`).length;
    } catch {
      // It is not dumpable, and we are not root.
    }
  }
  return open;
}

/** What is still there when time is up. */
async function untilGone(find: () => readonly string[]): Promise<readonly string[]> {
  const end = performance.now() + GONE_WITHIN_MS;
  for (;;) {
    const found = find();
    if (found.length === 0 || performance.now() > end) return found;
    await sleep(50);
  }
}

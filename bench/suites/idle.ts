import { setTimeout as sleep } from "node:timers/promises";
import type { TestSandbox } from "../../tests/support/api.ts";
import { cpu, memory, partProcesses } from "../support/processes.ts";
import { judge } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";

const COUNTS = [0, 10, 50];
/** Sandboxes created side by side. */
const AT_ONCE = 6;
/** After the last creation, so that its work is over. */
const SETTLE_MS = 3000;
const IDLE_MS = 6000;

/** What sandboxes cost that do nothing: memory and CPU of gateway, host and init, without the agent's own. */
export async function idle(stage: Stage): Promise<void> {
  await using gateway = await stage.freshGateway();
  const sandboxes: TestSandbox[] = [];
  const found = new Map<number, ReturnType<typeof memory>>();
  const idleCpu = new Map<number, Readonly<Record<"gateway" | "host" | "init", number>>>();
  for (const count of COUNTS) {
    while (sandboxes.length < count) {
      const wanted = Math.min(AT_ONCE, count - sandboxes.length);
      sandboxes.push(...(await Promise.all(Array.from({ length: wanted }, () => gateway.create()))));
    }
    await sleep(SETTLE_MS);
    found.set(count, memory());
    const parts = partProcesses();
    const before = cpu(parts);
    await sleep(IDLE_MS);
    const after = cpu(parts);
    const spent = (role: "gateway" | "host" | "init"): number => (after[role] - before[role]) / (IDLE_MS / 1000);
    idleCpu.set(count, { gateway: spent("gateway"), host: spent("host"), init: spent("init") });
  }
  // Creating and deleting leave garbage behind, which is no cost of a sandbox.
  await Promise.all(sandboxes.map((sandbox) => sandbox.delete()));
  const [none, some, most] = COUNTS.map((count) => found.get(count)!) as [Memory, Memory, Memory];
  const [none_, few, many] = COUNTS as [number, number, number];
  const { report } = stage;
  const perSandbox = (most.total - some.total) / (many - few);
  report(
    judge(
      {
        id: "idle/memory",
        what: "memory of one more idle sandbox (PSS, between 10 and 50)",
        measured: perSandbox,
        unit: "MB",
        details: {
          "of that init": (most.init - some.init) / (many - few),
          host: (most.host - some.host) / (many - few),
          gateway: (most.gateway - some.gateway) / (many - few),
        },
      },
      { text: "≤ 3 MB", atMost: 3 },
    ),
  );
  report(
    judge(
      { id: "idle/gateway-memory", what: "gateway without sandboxes (PSS)", measured: none.gateway, unit: "MB" },
      { text: "≤ 90 MB", atMost: 90 },
    ),
  );
  report(
    judge(
      {
        id: "idle/gateway-memory-50",
        what: `gateway with ${many} sandboxes created (PSS)`,
        measured: most.gateway,
        unit: "MB",
        details: { "host with 10": some.host, "host with 50": most.host },
      },
      { text: "≤ 120 MB", atMost: 120 },
    ),
  );
  const base = idleCpu.get(none_)!;
  const busy = idleCpu.get(many)!;
  const sum = (one: Readonly<Record<string, number>>): number => Object.values(one).reduce((a, b) => a + b, 0);
  report(
    judge(
      {
        id: "idle/cpu",
        what: `CPU of one idle sandbox (of ${many}, all parts)`,
        measured: Math.max(0, sum(busy) - sum(base)) / many,
        unit: "ms/s",
        details: { host: busy.host, gateway: busy.gateway, init: busy.init },
      },
      { text: "≤ 0.1 ms a second", atMost: 0.1 },
    ),
  );
  report(
    judge(
      {
        id: "idle/gateway-cpu",
        what: `CPU of the gateway with ${few} idle sandboxes`,
        measured: idleCpu.get(few)!.gateway,
        unit: "ms/s",
        details: { "with none": base.gateway },
      },
      { text: "≤ 3 ms a second", atMost: 3 },
    ),
  );
}

type Memory = ReturnType<typeof memory>;

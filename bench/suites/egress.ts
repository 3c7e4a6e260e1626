import type { TestSandbox } from "../../tests/support/api.ts";
import { benchPolicy, DENIED_HOST, Origin, type Passed, TUNNEL_HOST } from "../support/origin.ts";
import { type Budget, judge, type Result } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";
import type { Job, Measured } from "../workers/http-client.ts";

/** Of every download; large enough that the start does not count. */
const BULK_BYTES = 128 * 1024 * 1024;

type Wanted = Partial<Job> & Pick<Job, "kind">;

/** What leaves a sandbox, beside the same client outside on a direct connection. */
export async function egress(stage: Stage): Promise<void> {
  const gateway = await stage.gateway();
  const origin = await Origin.start(stage);
  await using sandbox = await gateway.create({
    name: "bench-egress",
    policy: benchPolicy(1),
    volumes: origin.volumes,
  });
  await origin.through(sandbox, { kind: "keepalive", seconds: 1, clients: 4 });
  await requests(stage, origin, sandbox);
  await connections(stage, origin, sandbox);
  await bulk(stage, origin, sandbox);
}

/** Rounds in which two measurements take turns: a slow moment of the machine then falls on both. */
const ROUNDS = 3;

type Side = "direct" | "inside";

/** Medians of some rounds of the same job on different ways. */
async function inTurns<Name extends string>(
  { seconds }: Stage,
  origin: Origin,
  sandbox: TestSandbox,
  jobs: Readonly<Record<Name, readonly [Side, Wanted]>>,
): Promise<Readonly<Record<Name, Passed>>> {
  const names = Object.keys(jobs) as Name[];
  const found = new Map<Name, Passed[]>(names.map((name) => [name, []]));
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const name of names) {
      const [side, wanted] = jobs[name];
      const job = { seconds, ...wanted };
      found
        .get(name)!
        .push(
          side === "direct" ? { ...(await origin.direct(job)), hostCpuEachMs: 0 } : await origin.through(sandbox, job),
        );
    }
  }
  const medians = names.map((name) => [name, medianOf(found.get(name)!)] as const);
  return Object.fromEntries(medians) as Record<Name, Passed>;
}

function medianOf(rounds: readonly Passed[]): Passed {
  const middle = (key: keyof Passed): number => rounds.map((one) => one[key]).sort((a, b) => a - b)[ROUNDS >> 1]!;
  return {
    count: rounds.reduce((sum, { count }) => sum + count, 0),
    perSecond: middle("perSecond"),
    p50: middle("p50"),
    p99: middle("p99"),
    megabytesPerSecond: middle("megabytesPerSecond"),
    hostCpuEachMs: middle("hostCpuEachMs"),
  };
}

function rate(
  id: string,
  what: string,
  measured: Passed,
  reference: { readonly what: string; readonly measured: Measured },
  budget?: Budget,
): Result {
  return judge(
    {
      id: `egress/${id}`,
      what,
      measured: measured.perSecond,
      unit: "/s",
      reference: { what: reference.what, value: reference.measured.perSecond },
      details: { p50: measured.p50, p99: measured.p99, "host CPU each, ms": measured.hostCpuEachMs },
    },
    budget,
  );
}

async function requests(stage: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const { report } = stage;
  const one: Wanted = { kind: "keepalive" };
  const alone = await inTurns(stage, origin, sandbox, { direct: ["direct", one], inspected: ["inside", one] });
  report(
    judge(
      {
        id: "egress/latency",
        what: "inspected HTTPS, keep-alive, 1 client, p50",
        measured: alone.inspected.p50,
        unit: "ms",
        reference: { what: "direct", value: alone.direct.p50 },
        details: {
          "added ms": alone.inspected.p50 - alone.direct.p50,
          p99: alone.inspected.p99,
          "host CPU each, ms": alone.inspected.hostCpuEachMs,
        },
      },
      { text: "≤ direct + 0.3 ms", atMost: alone.direct.p50 + 0.3 },
    ),
  );
  const many: Wanted = { kind: "keepalive", clients: 16 };
  const budget = { text: "≥ 4,000", atLeast: 4000, reference: 19_000 };
  const small = await inTurns(stage, origin, sandbox, {
    direct: ["direct", many],
    inspected: ["inside", many],
    tunnel: ["inside", { ...many, host: TUNNEL_HOST }],
    refused: ["inside", { ...many, method: "POST", status: 403 }],
  });
  const direct = { what: "direct", measured: small.direct };
  report(rate("rate-1-rule", "inspected HTTPS, keep-alive, 16 clients, 1 rule", small.inspected, direct, budget));
  await sandbox.setPolicy(benchPolicy(100));
  const large = await inTurns(stage, origin, sandbox, { direct: ["direct", many], inspected: ["inside", many] });
  await sandbox.setPolicy(benchPolicy(1));
  const again = { what: "direct", measured: large.direct };
  report(rate("rate-100-rules", "inspected HTTPS, keep-alive, 16 clients, 100 rules", large.inspected, again, budget));
  report(rate("rate-tunnel", "tunnel (tls: skip), keep-alive, 16 clients", small.tunnel, direct));
  const plain: Wanted = { ...many, secure: false };
  const clear = await inTurns(stage, origin, sandbox, { direct: ["direct", plain], inspected: ["inside", plain] });
  const clearDirect = { what: "direct", measured: clear.direct };
  const clearBudget = { text: "≥ 4,000", atLeast: 4000 };
  report(rate("rate-plain", "plain HTTP, keep-alive, 16 clients", clear.inspected, clearDirect, clearBudget));
  const refusedBudget = { text: "≥ 3,000", atLeast: 3000 };
  report(rate("denied-l7", "denied requests, keep-alive, 16 clients", small.refused, direct, refusedBudget));
}

async function connections(stage: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const { report } = stage;
  const fresh: Wanted = { kind: "connections", clients: 8 };
  const single: Wanted = { kind: "connections" };
  const denied: Wanted = {
    kind: "denied",
    secure: false,
    clients: 8,
    host: DENIED_HOST,
    address: "127.0.0.1",
    port: 3128,
    status: 403,
  };
  const found = await inTurns(stage, origin, sandbox, {
    direct: ["direct", fresh],
    inspected: ["inside", fresh],
    refused: ["inside", denied],
    directAlone: ["direct", single],
    inspectedAlone: ["inside", single],
  });
  const direct = { what: "direct", measured: found.direct };
  const budget = { text: "≥ 350", atLeast: 350, reference: 650 };
  report(rate("new-connections", "inspected HTTPS, new connection each, 8 clients", found.inspected, direct, budget));
  const added = found.inspectedAlone.p50 - found.directAlone.p50;
  report(
    judge(
      {
        id: "egress/first-request",
        what: "inspected HTTPS, new connection each, 1 client, p50",
        measured: found.inspectedAlone.p50,
        unit: "ms",
        reference: { what: "direct, without DNS", value: found.directAlone.p50 },
        details: { "added ms": added, p99: found.inspectedAlone.p99 },
      },
      { text: "≤ direct + 3 ms", atMost: found.directAlone.p50 + 3 },
    ),
  );
  const refusedBudget = { text: "≥ 1,000", atLeast: 1000 };
  report(rate("denied-l4", "denied CONNECT, new connection each, 8 clients", found.refused, direct, refusedBudget));
}

async function bulk(stage: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const wanted: Wanted = { kind: "bulk", path: `/bulk/${BULK_BYTES}`, seconds: 0 };
  const found = await inTurns(stage, origin, sandbox, {
    direct: ["direct", wanted],
    inspected: ["inside", wanted],
    tunnel: ["inside", { ...wanted, host: TUNNEL_HOST }],
  });
  const value = found.direct.megabytesPerSecond;
  const figures = [
    ["bulk-inspected", "bulk download, inspected", found.inspected, 390 / 990, "≥ 0.39 of direct (stretch 0.7)"],
    ["bulk-tunnel", "bulk download, tunnel", found.tunnel, 525 / 990, "≥ 0.53 of direct (stretch 0.9)"],
  ] as const;
  for (const [id, what, { megabytesPerSecond }, share, text] of figures) {
    stage.report(
      judge(
        {
          id: `egress/${id}`,
          what,
          measured: megabytesPerSecond,
          unit: "MB/s",
          reference: { what: "direct", value },
        },
        { text, atLeast: share * value },
      ),
    );
  }
}

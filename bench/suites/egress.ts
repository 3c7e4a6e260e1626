import type { TestSandbox } from "../../tests/support/api.ts";
import { benchPolicy, DENIED_HOST, Origin, TUNNEL_HOST } from "../support/origin.ts";
import { type Budget, judge, type Result } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";
import type { Job, Measured } from "../workers/http-client.ts";

/** Of every download; large enough that the start does not count. */
const BULK_BYTES = 256 * 1024 * 1024;

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

function rate(
  id: string,
  what: string,
  measured: Measured,
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
      details: { p50: measured.p50, p99: measured.p99 },
    },
    budget,
  );
}

async function requests({ report }: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const kind = "keepalive" as const;
  const one = await origin.direct({ kind });
  const inspected = await origin.through(sandbox, { kind });
  report(
    judge(
      {
        id: "egress/latency",
        what: "inspected HTTPS, keep-alive, 1 client, p50",
        measured: inspected.p50,
        unit: "ms",
        reference: { what: "direct", value: one.p50 },
        details: { "added ms": inspected.p50 - one.p50, p99: inspected.p99 },
      },
      { text: "≤ direct + 0.3 ms", atMost: one.p50 + 0.3 },
    ),
  );
  const many: Wanted = { kind, clients: 16 };
  const direct = { what: "direct", measured: await origin.direct(many) };
  const budget = { text: "≥ 4,000", atLeast: 4000, reference: 19_000 };
  const small = await origin.through(sandbox, many);
  report(rate("rate-1-rule", "inspected HTTPS, keep-alive, 16 clients, 1 rule", small, direct, budget));
  await sandbox.setPolicy(benchPolicy(100));
  const large = await origin.through(sandbox, many);
  report(rate("rate-100-rules", "inspected HTTPS, keep-alive, 16 clients, 100 rules", large, direct, budget));
  await sandbox.setPolicy(benchPolicy(1));
  const tunnelled = await origin.through(sandbox, { ...many, host: TUNNEL_HOST });
  report(rate("rate-tunnel", "tunnel (tls: skip), keep-alive, 16 clients", tunnelled, direct));
  const plainDirect = { what: "direct", measured: await origin.direct({ ...many, secure: false }) };
  const plain = await origin.through(sandbox, { ...many, secure: false });
  report(rate("rate-plain", "plain HTTP, keep-alive, 16 clients", plain, plainDirect, { ...budget }));
  const refused = await origin.through(sandbox, { ...many, method: "POST", status: 403 });
  report(
    rate("denied-l7", "denied requests, keep-alive, 16 clients", refused, direct, { text: "≥ 3,000", atLeast: 3000 }),
  );
}

async function connections({ report }: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const fresh: Wanted = { kind: "connections", clients: 8 };
  const direct = { what: "direct", measured: await origin.direct(fresh) };
  const inspected = await origin.through(sandbox, fresh);
  report(
    rate("new-connections", "inspected HTTPS, new connection each, 8 clients", inspected, direct, {
      text: "≥ 350",
      atLeast: 350,
      reference: 650,
    }),
  );
  const single = await origin.direct({ ...fresh, clients: 1 });
  const first = await origin.through(sandbox, { ...fresh, clients: 1 });
  report(
    judge(
      {
        id: "egress/first-request",
        what: "inspected HTTPS, new connection each, 1 client, p50",
        measured: first.p50,
        unit: "ms",
        reference: { what: "direct", value: single.p50 },
        details: { "added ms": first.p50 - single.p50, p99: first.p99 },
      },
      { text: "≤ direct + 3 ms", atMost: single.p50 + 3 },
    ),
  );
  const denied: Wanted = {
    kind: "denied",
    secure: false,
    clients: 8,
    host: DENIED_HOST,
    address: "127.0.0.1",
    port: 3128,
    status: 403,
  };
  const refused = await origin.through(sandbox, denied);
  report(
    rate("denied-l4", "denied CONNECT, new connection each, 8 clients", refused, direct, {
      text: "≥ 1,000",
      atLeast: 1000,
    }),
  );
}

async function bulk({ report }: Stage, origin: Origin, sandbox: TestSandbox): Promise<void> {
  const wanted: Wanted = { kind: "bulk", path: `/bulk/${BULK_BYTES}`, seconds: 0 };
  const direct = await origin.direct(wanted);
  const inspected = await origin.through(sandbox, wanted);
  const tunnelled = await origin.through(sandbox, { ...wanted, host: TUNNEL_HOST });
  const again = await origin.direct(wanted);
  const value = (direct.megabytesPerSecond + again.megabytesPerSecond) / 2;
  const figures = [
    ["bulk-inspected", "bulk download, inspected", inspected, 390 / 990, "≥ 0.39 of direct (stretch 0.7)"],
    ["bulk-tunnel", "bulk download, tunnel", tunnelled, 525 / 990, "≥ 0.53 of direct (stretch 0.9)"],
  ] as const;
  for (const [id, what, { megabytesPerSecond }, share, text] of figures) {
    report(
      judge(
        {
          id: `egress/${id}`,
          what,
          measured: megabytesPerSecond,
          unit: "MB/s",
          reference: { what: "direct, mean of before and after", value },
        },
        { text, atLeast: share * value },
      ),
    );
  }
}

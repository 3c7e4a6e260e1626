import { OpenShell, type SandboxPolicy } from "@openshell/api";
import { policyMessage, SCOPE, type TestSandbox } from "../../../tests/support/api.ts";
import { Configurations } from "../../support/configurations.ts";
import { GrpcClient } from "../../support/grpc.ts";
import { Prober } from "../../support/prober.ts";
import { judge } from "../../support/report.ts";
import type { Stage } from "../../support/stage.ts";
import { median, quantile } from "../../support/statistics.ts";

const SANDBOXES = 100;
/** Created side by side. */
const AT_ONCE = 8;
const ROUNDS = 5;
/** Of a policy for all of them. */
const SHARED_ROUNDS = 10;
const ALONE_ROUNDS = 25;
const HOST = "delivery.example-allowed.com";

const policyFor = (path: string): string => `
version: 1
network_policies:
  bench:
    endpoints:
      - {host: ${HOST}, port: 80, protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: "${path}"}}]}
    binaries: [{path: "/**"}]
`;

interface Changed {
  /** Until the call was answered: the supervisor decides by the new policy. */
  readonly answered: number;
  /** Until a request inside that the new policy allows, and the one before it refused, had its answer. */
  readonly served: number;
}

/** From the call that changes a policy to a request inside that it allows: of one real sandbox, of very many at once, and of all by one call. */
export async function enforced(stage: Stage): Promise<void> {
  await using gateway = await stage.freshGateway();
  const handler = (_: unknown, response: { end(text: string): unknown }): void => void response.end("ok");
  await stage.net.host(HOST, { services: [{ kind: "http", port: 80 }], handler });
  const pending = Array.from({ length: SANDBOXES }, (_, index) => `bench-delivery-${index}`).toReversed();
  const sandboxes: TestSandbox[] = [];
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      for (let name = pending.pop(); name !== undefined; name = pending.pop())
        sandboxes.push(await gateway.create({ name, policy: policyFor("/none") }));
    }),
  );
  using client = new GrpcClient(gateway.folders.userSocket);
  using probes = new GrpcClient(gateway.folders.userSocket);
  const probers = await Promise.all(sandboxes.map(({ name }) => Prober.start(probes, name, HOST)));
  const change = async (index: number, path: string, policy: SandboxPolicy): Promise<Changed> => {
    const sandbox = sandboxes[index]!.name;
    const begin = performance.now();
    await client.unary(OpenShell.method.updateConfig, { workspaceScope: SCOPE, sandbox, policy });
    const answered = performance.now() - begin;
    await probers[index]!.until(path);
    return { answered, served: performance.now() - begin };
  };
  const alone: Changed[] = [];
  for (let round = 0; round < ALONE_ROUNDS; round += 1) {
    const path = `/alone/${round}`;
    alone.push(await change(0, path, policyMessage(policyFor(path))));
  }
  const all: Changed[] = [];
  const whole: number[] = [];
  const decided: number[] = [];
  for (let round = -1; round < ROUNDS; round += 1) {
    const path = `/all/${round}`;
    const policy = policyMessage(policyFor(path));
    const begin = performance.now();
    const times = await Promise.all(sandboxes.map((_, index) => change(index, path, policy)));
    // Code is compiled in the first one, and connections are opened.
    if (round < 0) continue;
    whole.push(performance.now() - begin);
    decided.push(Math.max(...times.map(({ answered }) => answered)));
    all.push(...times);
  }
  using watches = new GrpcClient(gateway.folders.userSocket);
  const configurations = sandboxes.map(({ name }) => new Configurations(watches, name));
  const shared: number[] = [];
  for (let round = -1; round < SHARED_ROUNDS; round += 1) {
    const path = `/shared/${round}`;
    const policy = policyMessage(policyFor(path));
    const begin = performance.now();
    const times = probers.map(async (prober, index) => {
      await configurations[index]!.next();
      await prober.until(path);
      return performance.now() - begin;
    });
    await client.unary(OpenShell.method.updateConfig, { global: true, policy });
    const took = await Promise.all(times);
    if (round >= 0) shared.push(...took);
  }
  await client.unary(OpenShell.method.updateConfig, { global: true, settingKey: "policy", deleteSetting: true });
  const refused = probers.reduce((sum, prober) => sum + prober.refused, 0);
  for (const prober of probers) await prober.end();
  await Promise.all(sandboxes.map((sandbox) => sandbox.delete()));

  const reached = sorted(shared);
  const served = sorted(all.map((one) => one.served));
  const one = sorted(alone.map(({ served }) => served));
  stage.report(
    judge(
      {
        id: "delivery/enforced-in-100",
        what: `one policy for ${SANDBOXES} sandboxes changed → a request inside each that it allows, p95`,
        measured: quantile(reached, 0.95),
        unit: "ms",
        reference: { what: "of one of them alone, p50", value: quantile(one, 0.5) },
        details: { p50: quantile(reached, 0.5), slowest: reached.at(-1)! },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
  stage.report(
    judge(
      {
        id: "delivery/enforced-100",
        what: `policies of ${SANDBOXES} sandboxes changed at once → a request that each allows, p95`,
        measured: quantile(served, 0.95),
        unit: "ms",
        reference: { what: "one of them alone, p50", value: quantile(one, 0.5) },
        details: {
          p50: quantile(served, 0.5),
          "call answered p95": quantile(sorted(all.map(({ answered }) => answered)), 0.95),
          "all of them": median(whole),
          "requests refused after the answer": refused,
        },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
  stage.report(
    judge(
      {
        id: "policy/enforced-100",
        what: `policies of ${SANDBOXES} sandboxes changed at once → all decide by them`,
        measured: median(decided),
        unit: "ms",
        reference: { what: "one of them alone", value: median(alone.map(({ answered }) => answered)) },
        details: { slowest: Math.max(...decided) },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
  stage.report(
    judge(
      {
        id: "delivery/enforced-1",
        what: `policy of one of ${SANDBOXES} sandboxes changed → a request that it allows, p95`,
        measured: quantile(one, 0.95),
        unit: "ms",
        details: { p50: quantile(one, 0.5), "call answered p50": median(alone.map(({ answered }) => answered)) },
      },
      { text: "≤ 50 ms", atMost: 50 },
    ),
  );
}

function sorted(times: readonly number[]): readonly number[] {
  return times.toSorted((a, b) => a - b);
}

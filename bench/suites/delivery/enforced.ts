import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell, type SandboxPolicy } from "@openshell/api";
import { policyMessage, SCOPE, type TestSandbox } from "../../../tests/support/api.ts";
import type { HttpHandler } from "../../../tests/support/internet/responses.ts";
import { GrpcClient } from "../../support/grpc.ts";
import { monotonicMs, Prober } from "../../support/prober.ts";
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
/** Between the last answer that is held and the change. */
const CALM_MS = 100;
const HOST = "delivery.example-allowed.com";

const policyFor = (round: string): string => `
version: 1
network_policies:
  bench:
    endpoints:
      - {host: ${HOST}, port: 80, protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: "/${round}/*"}}]}
    binaries: [{path: "/**"}]
`;

/** Each round has a policy of its own, which allows two paths. */
const held = (round: string): string => `/${round}/held`;
const asked = (round: string): string => `/${round}/asked`;

interface Changed {
  /** Until the call was answered: the supervisor decides by the new policy. */
  readonly answered: number;
  /** Until an answer inside was cut that the new policy does not allow. */
  readonly cut: number;
  /** Until a request inside that it allows, and the one before it refused, had its answer. */
  readonly served: number;
}

/**
 * From the call that changes a policy to what a client inside sees of it: of one real sandbox, of very many at once, and of all by one
 * call. Each client holds an answer open that only the policy before allows. `yardstick`: how many times slower the machine is
 * than that of the budgets.
 */
export async function enforced(stage: Stage, yardstick: () => Promise<number>): Promise<void> {
  const before = await yardstick();
  await using gateway = await stage.freshGateway();
  const handler: HttpHandler = ({ url }, response) => {
    if (url?.endsWith("/held") === true) response.write("held\n");
    else response.end("asked\n");
  };
  await stage.net.host(HOST, { services: [{ kind: "http", port: 80, handler }] });
  const pending = Array.from({ length: SANDBOXES }, (_, index) => `bench-delivery-${index}`).toReversed();
  const sandboxes: TestSandbox[] = [];
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      for (let name = pending.pop(); name !== undefined; name = pending.pop())
        sandboxes.push(await gateway.create({ name, policy: policyFor("first") }));
    }),
  );
  using client = new GrpcClient(gateway.folders.userSocket);
  using probes = new GrpcClient(gateway.folders.userSocket);
  const probers = await Promise.all(sandboxes.map(({ name }) => Prober.start(probes, name, HOST)));
  let refused = 0;
  /** One round with these clients: `change` is called for each when all hold their answers. */
  const round = async (
    of: readonly Prober[],
    from: string,
    to: string,
    change: (policy: SandboxPolicy, index: number) => Promise<unknown>,
  ): Promise<readonly Changed[]> => {
    const policy = policyMessage(policyFor(to));
    const seen = await Promise.all(of.map((prober) => prober.hold(held(from), asked(from), asked(to))));
    await sleep(CALM_MS);
    const begin = monotonicMs();
    const answers = of.map((_, index) => change(policy, index).then(() => monotonicMs() - begin));
    return await Promise.all(
      seen.map(async (told, index) => {
        const answered = await answers[index]!;
        const { cut, served, refused: often } = await told();
        refused += often;
        if (cut < begin) throw new Error("an answer ended before the policy was changed");
        return { answered, cut: cut - begin, served: served - begin };
      }),
    );
  };
  const own = (policy: SandboxPolicy, index: number): Promise<unknown> =>
    client.unary(OpenShell.method.updateConfig, { workspaceScope: SCOPE, sandbox: sandboxes[index]!.name, policy });
  const alone: Changed[] = [];
  let last = "first";
  for (let index = 0; index < ALONE_ROUNDS; index += 1) {
    const next = `alone-${index}`;
    alone.push(...(await round(probers.slice(0, 1), last, next, own)));
    last = next;
  }
  await own(policyMessage(policyFor("first")), 0);
  last = "first";
  const all: Changed[] = [];
  const decided: number[] = [];
  for (let index = 0; index <= ROUNDS; index += 1) {
    const next = `all-${index}`;
    const times = await round(probers, last, next, own);
    last = next;
    // Code is compiled in the first one, and connections are opened.
    if (index === 0) continue;
    decided.push(Math.max(...times.map(({ answered }) => answered)));
    all.push(...times);
  }
  const shared: Changed[] = [];
  for (let index = 0; index <= SHARED_ROUNDS; index += 1) {
    const next = `shared-${index}`;
    let call: Promise<unknown> | undefined;
    const times = await round(probers, last, next, (policy) => {
      call ??= client.unary(OpenShell.method.updateConfig, { global: true, policy });
      return call;
    });
    last = next;
    if (index > 0) shared.push(...times);
  }
  await client.unary(OpenShell.method.updateConfig, { global: true, settingKey: "policy", deleteSetting: true });
  for (const prober of probers) await prober.end();
  await Promise.all(sandboxes.map((sandbox) => sandbox.delete()));

  const reached = sorted(shared.map((one) => one.served));
  const machine = Math.min(before, await yardstick());
  const of100 = { text: "≤ 250 ms", atMost: 250, scaledAtMost: 250 * machine };
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
        details: {
          p50: quantile(reached, 0.5),
          slowest: reached.at(-1)!,
          "cut p95": quantile(sorted(shared.map(({ cut }) => cut)), 0.95),
          "machine slower by": machine,
        },
      },
      of100,
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
          "cut p95": quantile(sorted(all.map(({ cut }) => cut)), 0.95),
          "requests refused after the cut": refused,
        },
      },
      of100,
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
      of100,
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
      { text: "≤ 50 ms", atMost: 50, scaledAtMost: 50 * machine },
    ),
  );
}

function sorted(times: readonly number[]): readonly number[] {
  return times.toSorted((a, b) => a - b);
}

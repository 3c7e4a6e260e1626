import { OpenShell, type SandboxPolicy } from "@openshell/api";
import { policyMessage } from "../../tests/support/api.ts";
import { GrpcClient } from "../support/grpc.ts";
import { benchPolicy } from "../support/origin.ts";
import { judge } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";
import { median } from "../support/statistics.ts";

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
const SANDBOXES = 100;
/** Created side by side. */
const AT_ONCE = 8;
const ROUNDS = 5;

/**
 * The policies of many sandboxes changed at the same moment, until each supervisor decides by its new one: an answer
 * comes when it does, and the active version is looked at afterwards.
 */
export async function policies(stage: Stage): Promise<void> {
  const gateway = await stage.gateway();
  const names = Array.from({ length: SANDBOXES }, (_, index) => `bench-policies-${index}`);
  const pending = names.toReversed();
  const created = await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      const own = [];
      for (let name = pending.pop(); name !== undefined; name = pending.pop())
        own.push(await gateway.create({ name, policy: benchPolicy(1) }));
      return own;
    }),
  );
  using client = new GrpcClient(gateway.folders.userSocket);
  const change = async (sandbox: string, policy: SandboxPolicy): Promise<number> => {
    const request = { workspaceScope: SCOPE, sandbox, policy };
    const { version } = await client.unary(OpenShell.method.updateConfig, request);
    return version;
  };
  const alone: number[] = [];
  const all: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const [one, many] = [`/alone/${round}`, `/all/${round}`].map((path) => policyMessage(benchPolicy(1, path)));
    const begin = performance.now();
    await change(names[0]!, one!);
    alone.push(performance.now() - begin);
    const startedAt = performance.now();
    const versions = await Promise.all(names.map((name) => change(name, many!)));
    all.push(performance.now() - startedAt);
    for (const [index, sandbox] of names.entries()) {
      const status = await client.unary(OpenShell.method.getSandboxPolicyStatus, { workspaceScope: SCOPE, sandbox });
      if (status.activeVersion !== versions[index])
        throw new Error(`${sandbox} decides by version ${status.activeVersion}, not ${versions[index]}`);
    }
  }
  await Promise.all(created.flat().map((sandbox) => sandbox.delete()));
  stage.report(
    judge(
      {
        id: "policy/enforced-100",
        what: "policies of 100 sandboxes changed at once → all decide by them",
        measured: median(all),
        unit: "ms",
        reference: { what: "one of them alone", value: median(alone) },
        details: { slowest: Math.max(...all) },
      },
      { text: "≤ 250 ms", atMost: 250 },
    ),
  );
}

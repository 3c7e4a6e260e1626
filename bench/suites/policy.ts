import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell } from "@openshell/api";
import { policyMessage } from "../../tests/support/api.ts";
import { GrpcClient } from "../support/grpc.ts";
import { benchPolicy, Origin } from "../support/origin.ts";
import { judge } from "../support/report.ts";
import type { Stage } from "../support/stage.ts";
import { summarise } from "../support/statistics.ts";
import type { Change } from "../workers/http-client.ts";
import { decisions } from "./decisions.ts";

const SCOPE = { selection: { case: "workspace", value: "default" } } as const;
const CHANGES = 24;
const PAUSE_MS = 80;

/** What a decision takes, and how soon a change is in force. */
export async function policy(stage: Stage): Promise<void> {
  await decisions(stage);
  await enforced(stage);
}

/** From the call that changes a policy to the first request inside that is decided by it. */
async function enforced(stage: Stage): Promise<void> {
  const gateway = await stage.gateway();
  const origin = await Origin.start(stage);
  await using sandbox = await gateway.create({
    name: "bench-policy",
    policy: benchPolicy(1),
    volumes: origin.volumes,
  });
  const steady = await origin.through(sandbox, { kind: "keepalive" });
  using client = new GrpcClient(gateway.folders.userSocket);
  const seen: Change[] = [];
  let text = "";
  const watching = client.stream(
    OpenShell.method.execSandbox,
    {
      workspaceScope: SCOPE,
      sandbox: sandbox.name,
      command: [...origin.inside(origin.job({ kind: "watch", seconds: 600 }))],
      noLoginShell: true,
    },
    ({ payload }) => {
      if (payload.case !== "stdout") return;
      text += Buffer.from(payload.value.data).toString();
      const lines = text.split("\n");
      text = lines.pop()!;
      for (const line of lines) seen.push(JSON.parse(line) as Change);
    },
  );
  watching.catch(() => {});
  const next = async (status: number, after: number): Promise<number> => {
    const limit = performance.now() + 15_000;
    for (;;) {
      const found = seen.find((change) => change.status === status && change.at >= after);
      if (found !== undefined) return found.at;
      if (performance.now() > limit) throw new Error(`no request was answered with ${status}`);
      await sleep(5);
    }
  };
  await next(200, 0);
  const [enforced, afterAnswer, answered] = [[], [], []] as [number[], number[], number[]];
  for (let change = 0; change < CHANGES; change += 1) {
    const allow = change % 2 === 1;
    const policy = policyMessage(benchPolicy(1, allow ? "/**" : "/elsewhere"));
    const startedAt = performance.timeOrigin + performance.now();
    await client.unary(OpenShell.method.updateConfig, {
      workspaceScope: SCOPE,
      sandbox: sandbox.name,
      policy,
    });
    const answeredAt = performance.timeOrigin + performance.now();
    const at = await next(allow ? 200 : 403, startedAt);
    enforced.push(at - startedAt);
    afterAnswer.push(Math.max(0, at - answeredAt));
    answered.push(answeredAt - startedAt);
    await sleep(PAUSE_MS);
  }
  const figures = summarise({ times: enforced, totalMs: 1 });
  stage.report(
    judge(
      {
        id: "policy/enforced",
        what: "policy change → first request decided by it, p95",
        measured: figures.p95,
        unit: "ms",
        reference: { what: "one inspected request, p50", value: steady.p50 },
        details: {
          p50: figures.p50,
          "call answered p50": summarise({ times: answered, totalMs: 1 }).p50,
          "after the answer p95": summarise({ times: afterAnswer, totalMs: 1 }).p95,
        },
      },
      { text: "≤ 50 ms", atMost: 50 },
    ),
  );
}

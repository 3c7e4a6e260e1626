import { judge } from "../support/report.ts";
import { type Stage, Worker } from "../support/stage.ts";
import type { Answer, Job } from "../workers/api.ts";

const CLIENTS = [1, 8, 32, 64];
const OUTPUT_BYTES = 256 * 1024 * 1024;

/** Commands in a sandbox that stands, through the API, beside the same commands started directly. */
export async function exec(stage: Stage): Promise<void> {
  const gateway = await stage.gateway();
  await using sandbox = await gateway.create({ name: "bench-exec" });
  using worker = new Worker("api");
  const { seconds, report } = stage;
  const target = { socket: gateway.folders.userSocket, sandbox: sandbox.name };
  const ask = (job: Job) => worker.run<Answer>(job);
  await ask({ kind: "exec", ...target, clients: 4, seconds: 0.5 });
  let wrong = 0;
  let failed = 0;
  let count = 0;
  for (const clients of CLIENTS) {
    const plain = await ask({ kind: "spawn", clients, seconds });
    const ours = await ask({ kind: "exec", ...target, clients, seconds });
    wrong += ours.wrong;
    failed += ours.failed;
    count += ours.count;
    if (clients === 1) {
      report(
        judge(
          {
            id: "exec/latency",
            what: "exec through the API, 1 client, p50",
            measured: ours.p50,
            unit: "ms",
            reference: { what: "plain spawn", value: plain.p50 },
            details: { p99: ours.p99, "/s": ours.perSecond },
          },
          { text: "≤ 12 ms", atMost: 12 },
        ),
      );
      continue;
    }
    report(
      judge(
        {
          id: `exec/rate-${clients}`,
          what: `exec through the API, ${clients} clients`,
          measured: ours.perSecond,
          unit: "/s",
          reference: { what: "plain spawn", value: plain.perSecond },
          details: { p50: ours.p50, p99: ours.p99 },
        },
        { text: "≥ 400 a second", atLeast: 400 },
      ),
    );
  }
  report(
    judge(
      {
        id: "exec/wrong",
        what: `wrong exit codes and failed calls of ${count}`,
        measured: wrong + failed,
        unit: "count",
      },
      { text: "0", atMost: 0 },
    ),
  );
  const plain = await ask({ kind: "spawn-output", bytes: OUTPUT_BYTES });
  const ours = await ask({ kind: "output", ...target, bytes: OUTPUT_BYTES });
  report(
    judge(
      {
        id: "exec/stdout",
        what: "exec through the API, standard output",
        measured: ours.megabytesPerSecond,
        unit: "MB/s",
        reference: { what: "plain spawn", value: plain.megabytesPerSecond },
      },
      { text: "≥ 150 MB/s", atLeast: 150 },
    ),
  );
}

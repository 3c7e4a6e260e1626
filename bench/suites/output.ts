import { judge } from "../support/report.ts";
import type { RpcServers } from "../support/rpc-servers.ts";
import { CHUNK_BYTES, ECHO_BYTES } from "../support/rpc-service.ts";
import { type Stage, Worker } from "../support/stage.ts";
import { median } from "../support/statistics.ts";
import type { Answer, Job } from "../workers/api.ts";
import type { RpcAnswer, RpcJob } from "../workers/rpc-client.ts";

const BYTES = 128 * 1024 * 1024;
const ROUNDS = 3;

/** Output of a command through host and gateway, in turns with streams of the lane alone; by the same bare client. */
export async function output(stage: Stage, servers: RpcServers): Promise<void> {
  const gateway = await stage.gateway();
  await using sandbox = await gateway.create({ name: "bench-output" });
  using worker = new Worker("api");
  using peer = new Worker("rpc-client");
  const job = { kind: "output", socket: gateway.folders.userSocket, sandbox: sandbox.name, bytes: BYTES } as const;
  const socket = servers.socket("lane");
  const echo = { client: "bare", operation: "echo", socket, clients: 1, seconds: stage.seconds / ROUNDS } as const;
  const rates = { output: [] as number[], echo: [] as number[], download: [] as number[] };
  for (let round = 0; round < ROUNDS; round += 1) {
    rates.output.push((await worker.run<Answer>(job satisfies Job)).megabytesPerSecond);
    rates.echo.push(((await peer.run<RpcAnswer>(echo satisfies RpcJob)).perSecond * ECHO_BYTES) / 1e6);
    const stream = await peer.run<RpcAnswer>({ operation: "download", socket, bytes: BYTES } satisfies RpcJob);
    rates.download.push((stream.perSecond * CHUNK_BYTES) / 1e6);
  }
  const measured = median(rates.output);
  const reference = median(rates.echo);
  const figure = {
    what: "exec through the API, standard output",
    measured,
    unit: "MB/s",
    reference: { what: "lane, 16 KiB stream echo", value: reference },
  } as const;
  const details = { "lane, 64 KiB server stream": median(rates.download) };
  stage.report(
    judge({ ...figure, id: "rpc/output-share", details }, { text: "≥ 0.7 of the lane", atLeast: 0.7 * reference }),
  );
  stage.report(judge({ ...figure, id: "rpc/output" }, { text: "≥ 150 MB/s", atLeast: 150 }));
}

import { cpuOf } from "../support/processes.ts";
import { judge } from "../support/report.ts";
import { RpcServers } from "../support/rpc-servers.ts";
import { ECHO_BYTES, LIBRARIES, type Library, UNARY_BYTES } from "../support/rpc-service.ts";
import { type Stage, Worker } from "../support/stage.ts";
import { median } from "../support/statistics.ts";
import type { LoadJob, RpcAnswer } from "../workers/rpc-client.ts";
import { calls } from "./calls.ts";
import { output } from "./output.ts";

const CLIENTS = [1, 16, 64] as const;
/** What programs are written with. */
const PRODUCTS = LIBRARIES.filter((library) => library !== "bare");
const OPERATIONS = ["unary", "echo"] as const;
/** Each figure is the median of so many rounds; in each round all libraries take turns. */
const ROUNDS = 3;
/** Each library runs so long before it is measured: its code is compiled then. */
const WARM_UP_SECONDS = 0.4;

/** RPC libraries, the same service by each; then the gateway's own calls and its bulk output. */
export async function rpc(stage: Stage): Promise<void> {
  await using servers = await RpcServers.start(stage.build.folder);
  await compare(stage, servers);
  await calls(stage);
  await output(stage, servers);
}

async function compare(stage: Stage, servers: RpcServers): Promise<void> {
  const workers = new Map(LIBRARIES.map((library) => [library, new Worker("rpc-client")]));
  try {
    await comparePairs(stage, servers, workers);
    await compareServers(stage, servers, workers.get("bare")!);
  } finally {
    for (const worker of workers.values()) worker[Symbol.dispose]();
  }
}

/** Each library's client with its server: what a program has of it that uses the library on both sides. */
async function comparePairs(stage: Stage, servers: RpcServers, workers: ReadonlyMap<Library, Worker>): Promise<void> {
  for (const operation of OPERATIONS) {
    for (const client of LIBRARIES) {
      const warm = { operation, client, clients: 16, seconds: WARM_UP_SECONDS } as const;
      await measure(workers.get(client)!, servers, client, warm, "both");
    }
    for (const clients of CLIENTS) {
      const job = { operation, clients, seconds: stage.seconds / ROUNDS } as const;
      const turn = (library: Library) =>
        measure(workers.get(library)!, servers, library, { ...job, client: library }, "both");
      report(stage, "pair", operation, clients, await rounds(PRODUCTS, turn));
    }
  }
}

/** Every server asked by the same bare client: what differs is the server. */
async function compareServers(stage: Stage, servers: RpcServers, worker: Worker): Promise<void> {
  for (const operation of OPERATIONS) {
    const clients = 16;
    const job = { client: "bare", operation, clients, seconds: stage.seconds / ROUNDS } as const;
    report(
      stage,
      "server",
      operation,
      clients,
      await rounds(LIBRARIES, (library) => measure(worker, servers, library, job, "server")),
    );
  }
}

/** Medians of one library's rounds. */
interface Figures {
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  /** CPU time of one call or message in the process that is compared, µs. */
  readonly cpu: number;
}

async function rounds(
  libraries: readonly Library[],
  turn: (library: Library) => Promise<Figures>,
): Promise<ReadonlyMap<Library, Figures>> {
  const taken = new Map<Library, Figures[]>(libraries.map((library) => [library, []]));
  for (let round = 0; round < ROUNDS; round += 1)
    for (const library of libraries) taken.get(library)!.push(await turn(library));
  const middle = (figures: readonly Figures[]): Figures => ({
    perSecond: median(figures.map(({ perSecond }) => perSecond)),
    p50: median(figures.map(({ p50 }) => p50)),
    p99: median(figures.map(({ p99 }) => p99)),
    cpu: median(figures.map(({ cpu }) => cpu)),
  });
  return new Map([...taken].map(([library, figures]) => [library, middle(figures)]));
}

async function measure(
  worker: Worker,
  servers: RpcServers,
  library: Library,
  job: Omit<LoadJob, "socket">,
  of: "both" | "server",
): Promise<Figures> {
  const cpu = (): number => cpuOf(servers.pid(library)) + (of === "both" ? cpuOf(worker.pid) : 0);
  const before = cpu();
  const answer = await worker.run<RpcAnswer>({ ...job, socket: servers.socket(library) } satisfies LoadJob);
  return { ...answer, cpu: ((cpu() - before) / answer.operations) * 1000 };
}

/** The lane is to do so many times what grpc-js does. */
const TIMES = { unary: 2, echo: 1.5 } as const;

function report(
  stage: Stage,
  side: "pair" | "server",
  operation: "unary" | "echo",
  clients: number,
  figures: ReadonlyMap<Library, Figures>,
): void {
  const scale = operation === "unary" ? 1 : ECHO_BYTES / 1e6;
  const call = operation === "unary" ? `unary, ${UNARY_BYTES} bytes` : `stream echo, ${ECHO_BYTES / 1024} KiB`;
  const others = [...figures.keys()].filter((library) => library !== "lane");
  const lane = figures.get("lane")!;
  const details: Record<string, number> = {};
  for (const library of others) if (library !== "grpc-js") details[library] = figures.get(library)!.perSecond * scale;
  if (operation === "unary") details["p50 ms"] = lane.p50;
  details["CPU each, µs"] = lane.cpu;
  for (const library of others) details[`${library} CPU`] = figures.get(library)!.cpu;
  const figure = {
    id: `rpc/${side}-${operation}-${clients}`,
    what: `${side === "pair" ? "client and server" : "server, bare client"}: ${call}, ${clients} client${clients === 1 ? "" : "s"}`,
    measured: lane.perSecond * scale,
    unit: operation === "unary" ? "/s" : "MB/s",
    reference: { what: "grpc-js", value: figures.get("grpc-js")!.perSecond * scale },
    details,
  } as const;
  const budget = { text: `≥ ${TIMES[operation]} × grpc-js`, atLeast: TIMES[operation] * figure.reference.value };
  // A server alone cannot: grpc-js stands on node:http2 as well, and needs less than twice what bare streams need.
  stage.report(judge(figure, side === "pair" ? budget : undefined));
}

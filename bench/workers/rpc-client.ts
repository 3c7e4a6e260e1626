import { connect as connectSocket } from "node:net";
import { create, fromBinary } from "@bufbuild/protobuf";
import { type BytesValue, BytesValueSchema } from "@bufbuild/protobuf/wkt";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import grpc from "@grpc/grpc-js";
import { createLaneTransport } from "@openshell/rpc/client/transport.ts";
import { frameOf, GrpcClient, pathOf } from "../support/grpc.ts";
import { Bench, ECHO_BYTES, encodePayload, type Library, payload, UNARY_BYTES } from "../support/rpc-service.ts";
import { loop, type Summary, summarise } from "../support/statistics.ts";
import { serveJobs } from "./jobs.ts";

/** Clients of the service by which RPC libraries are compared, each on a connection of its own. */

export interface LoadJob {
  readonly client: Library;
  readonly socket: string;
  readonly operation: "unary" | "echo";
  readonly clients: number;
  readonly seconds: number;
}

export type RpcJob =
  | LoadJob
  /** One stream of so many bytes from the server, by the bare client, each message decoded. */
  | { readonly operation: "download"; readonly socket: string; readonly bytes: number };

export interface RpcAnswer {
  /** Calls, or messages that came back, a second. */
  readonly perSecond: number;
  /** Of one call, milliseconds; NaN for streams. */
  readonly p50: number;
  readonly p99: number;
  /** Calls or messages including those before the measurement: what the server's CPU time was spent on. */
  readonly operations: number;
}

interface RpcClient {
  unary(): Promise<void>;
  /** Sends until the time `until` of performance.now(), {@link IN_FLIGHT} messages ahead, and tells of each that comes back. */
  echo(until: number, onMessage: (bytes: number) => void): Promise<void>;
  close(): void;
}

/** Messages of a stream that are under way: enough to hide the way there and back, and few for 64 streams to hold. */
const IN_FLIGHT = 16;

/** Keeps a stream busy until its time is over. Gives what is to be called for each message that came back. */
function pump(until: number, write: () => void, end: () => void): () => void {
  let inFlight = 0;
  let ended = false;
  const send = (): void => {
    for (; inFlight < IN_FLIGHT && performance.now() < until; inFlight += 1) write();
    if (ended || performance.now() < until) return;
    ended = true;
    end();
  };
  send();
  return () => {
    inFlight -= 1;
    send();
  };
}

const small = payload(UNARY_BYTES);
const large = payload(ECHO_BYTES);

function check(message: BytesValue, bytes: number): void {
  if (message.value.length !== bytes) throw new Error(`an answer of ${message.value.length} bytes`);
}

function bare(socket: string): RpcClient {
  const client = new GrpcClient(socket);
  const smallBytes = encodePayload(small);
  const frame = frameOf(encodePayload(large));
  return {
    async unary() {
      const [answer] = await client.raw(pathOf(Bench.method.unary), smallBytes);
      if (answer?.length !== smallBytes.length) throw new Error("an answer of another length");
    },
    echo(until, onMessage) {
      let cameBack = (): void => {};
      const stream = client.duplex(pathOf(Bench.method.echo), ({ length }) => {
        onMessage(length);
        cameBack();
      });
      cameBack = pump(
        until,
        () => stream.write(frame),
        () => stream.end(),
      );
      return stream.ended;
    },
    close: () => client[Symbol.dispose](),
  };
}

function connectClient(transport: Transport, close: () => void): RpcClient {
  const client: Client<typeof Bench> = createClient(Bench, transport);
  return {
    async unary() {
      check(await client.unary(small), UNARY_BYTES);
    },
    async echo(until, onMessage) {
      let wanted = 0;
      let ended = false;
      let wake = (): void => {};
      async function* requests(): AsyncGenerator<BytesValue> {
        for (;;) {
          if (wanted > 0) {
            wanted -= 1;
            yield large;
          } else if (ended) return;
          else
            await new Promise<void>((resolve) => {
              wake = resolve;
            });
        }
      }
      const answers = client.echo(requests());
      const write = (): void => {
        wanted += 1;
        wake();
      };
      const end = (): void => {
        ended = true;
        wake();
      };
      const cameBack = pump(until, write, end);
      for await (const { value } of answers) {
        onMessage(value.length);
        cameBack();
      }
    },
    close,
  };
}

function connectNode(socket: string): RpcClient {
  const sessions = new Set<{ destroy(): void }>();
  const transport = createGrpcTransport({
    baseUrl: "http://bench",
    nodeOptions: {
      createConnection: () => {
        const connection = connectSocket(socket);
        sessions.add(connection);
        return connection;
      },
    },
  });
  return connectClient(transport, () => {
    for (const session of sessions) session.destroy();
  });
}

function lane(socket: string): RpcClient {
  const transport = createLaneTransport({ dial: () => connectSocket(socket) });
  return connectClient(transport, () => void transport[Symbol.asyncDispose]());
}

function grpcJs(socket: string): RpcClient {
  // Without its own pool all clients of a process would share one connection.
  const options = { "grpc.use_local_subchannel_pool": 1 };
  const client = new grpc.Client(`unix:${socket}`, grpc.credentials.createInsecure(), options);
  const decode = (bytes: Buffer): BytesValue => fromBinary(BytesValueSchema, bytes);
  return {
    unary: () =>
      new Promise((resolve, reject) => {
        client.makeUnaryRequest(pathOf(Bench.method.unary), encodePayload, decode, small, (error, answer) => {
          if (error !== null) return reject(error);
          check(answer!, UNARY_BYTES);
          resolve();
        });
      }),
    echo(until, onMessage) {
      const call = client.makeBidiStreamRequest(pathOf(Bench.method.echo), encodePayload, decode);
      return new Promise((resolve, reject) => {
        const cameBack = pump(
          until,
          () => call.write(large),
          () => call.end(),
        );
        call.on("data", ({ value }: BytesValue) => {
          onMessage(value.length);
          cameBack();
        });
        call.on("error", reject);
        call.on("end", resolve);
      });
    },
    close: () => client.close(),
  };
}

const make: Readonly<Record<Library, (socket: string) => RpcClient>> = {
  bare,
  lane,
  "grpc-js": grpcJs,
  "connect-node": connectNode,
};

/** Calls that each client makes before the measurement. */
const WARM_UP_CALLS = 10;
/** The same for streams, milliseconds. */
const WARM_UP_MS = 50;

async function unary(clients: readonly RpcClient[], seconds: number): Promise<RpcAnswer> {
  const step = (index: number): Promise<void> => clients[index]!.unary();
  const before = await loop(clients.length, { count: clients.length * WARM_UP_CALLS }, step);
  const series = await loop(clients.length, { seconds }, step);
  const { perSecond, p50, p99 }: Summary = summarise(series);
  return { perSecond, p50, p99, operations: before.times.length + series.times.length };
}

async function echo(clients: readonly RpcClient[], seconds: number): Promise<RpcAnswer> {
  const startedAt = performance.now();
  const from = startedAt + WARM_UP_MS;
  const until = from + seconds * 1000;
  let operations = 0;
  let counted = 0;
  const onMessage = (bytes: number): void => {
    if (bytes < ECHO_BYTES) throw new Error(`a message of ${bytes} bytes came back`);
    operations += 1;
    const now = performance.now();
    if (now >= from && now < until) counted += 1;
  };
  await Promise.all(clients.map((client) => client.echo(until, onMessage)));
  return { perSecond: counted / seconds, p50: Number.NaN, p99: Number.NaN, operations };
}

async function download(socket: string, bytes: number): Promise<RpcAnswer> {
  using client = new GrpcClient(socket);
  let operations = 0;
  let received = 0;
  const startedAt = performance.now();
  const request = encodePayload(create(BytesValueSchema, { value: Buffer.from(String(bytes)) }));
  await client.raw(pathOf(Bench.method.download), request, (message) => {
    operations += 1;
    received += fromBinary(BytesValueSchema, message).value.length;
  });
  if (received !== bytes) throw new Error(`${received} bytes in place of ${bytes}`);
  const perSecond = (operations / (performance.now() - startedAt)) * 1000;
  return { perSecond, p50: Number.NaN, p99: Number.NaN, operations };
}

serveJobs(async (job: RpcJob): Promise<RpcAnswer> => {
  if (job.operation === "download") return await download(job.socket, job.bytes);
  const clients = Array.from({ length: job.clients }, () => make[job.client](job.socket));
  try {
    return await (job.operation === "unary" ? unary : echo)(clients, job.seconds);
  } finally {
    for (const client of clients) client.close();
  }
});

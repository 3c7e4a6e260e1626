/**
 * The same service served by one of the libraries that are compared, on a unix socket.
 *
 *   node bench/workers/rpc-server.ts lane|grpc-js|connect-node|bare SOCKET
 */
import { createServer, type Http2Server, type ServerHttp2Stream } from "node:http2";
import { create, fromBinary } from "@bufbuild/protobuf";
import { type BytesValue, BytesValueSchema } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter, ServiceImpl } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import grpc from "@grpc/grpc-js";
import { grpcLane } from "@openshell/rpc/server/lane.ts";
import { Bench, CHUNK_BYTES, encodePayload, type Library, payload } from "../support/rpc-service.ts";

/** As the gateway's listeners: the windows belong to the server that a handler is put on. */
const STREAM_WINDOW = 1024 * 1024;
const CONNECTION_WINDOW = 16 * 1024 * 1024;

const chunk = payload(CHUNK_BYTES);
const chunksFor = (request: BytesValue): number => Number(Buffer.from(request.value).toString()) / CHUNK_BYTES;

const service: ServiceImpl<typeof Bench> = {
  async unary(request) {
    return create(BytesValueSchema, { value: request.value });
  },
  async *echo(requests) {
    for await (const { value } of requests) yield create(BytesValueSchema, { value });
  },
  async *download(request) {
    for (let left = chunksFor(request); left > 0; left -= 1) yield chunk;
  },
};
const routes = (router: ConnectRouter): void => void router.service(Bench, service);

function http2(): Http2Server {
  const server = createServer({ settings: { initialWindowSize: STREAM_WINDOW, maxConcurrentStreams: 1000 } });
  server.on("session", (session) => session.setLocalWindowSize(CONNECTION_WINDOW));
  return server;
}

function connectNode(socket: string): void {
  const server = http2();
  server.on("request", connectNodeAdapter({ routes, compressMinBytes: Number.MAX_SAFE_INTEGER }));
  server.listen(socket, ready);
}

function lane(socket: string): void {
  const server = http2();
  const lane = grpcLane({ routes });
  server.on("stream", (stream, headers) => lane.handle(stream as ServerHttp2Stream, headers));
  server.listen(socket, ready);
}

/** Bytes as they come: no flags, no limits, no messages, no errors. */
function bare(socket: string): void {
  const server = http2();
  server.on("stream", (stream: ServerHttp2Stream) => {
    stream.on("error", () => {});
    stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.pipe(stream);
  });
  server.listen(socket, ready);
}

function grpcJs(socket: string): void {
  const decode = (bytes: Buffer): BytesValue => fromBinary(BytesValueSchema, bytes);
  const codec = {
    requestSerialize: encodePayload,
    requestDeserialize: decode,
    responseSerialize: encodePayload,
    responseDeserialize: decode,
  };
  const path = (name: string): string => `/${Bench.typeName}/${name}`;
  const server = new grpc.Server();
  server.addService(
    {
      unary: { path: path("Unary"), requestStream: false, responseStream: false, ...codec },
      echo: { path: path("Echo"), requestStream: true, responseStream: true, ...codec },
      download: { path: path("Download"), requestStream: false, responseStream: true, ...codec },
    },
    {
      unary: (call: grpc.ServerUnaryCall<BytesValue, BytesValue>, answer: grpc.sendUnaryData<BytesValue>) => {
        answer(null, create(BytesValueSchema, { value: call.request.value }));
      },
      echo: (call: grpc.ServerDuplexStream<BytesValue, BytesValue>) => {
        call.on("error", () => {});
        call.on("data", ({ value }: BytesValue) => {
          if (call.write(create(BytesValueSchema, { value }))) return;
          call.pause();
          call.once("drain", () => call.resume());
        });
        call.on("end", () => call.end());
      },
      download: (call: grpc.ServerWritableStream<BytesValue, BytesValue>) => {
        let left = chunksFor(call.request);
        const more = (): void => {
          while (left > 0) {
            left -= 1;
            if (!call.write(chunk)) {
              call.once("drain", more);
              return;
            }
          }
          call.end();
        };
        more();
      },
    },
  );
  server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
    if (error !== null) throw error;
    ready();
  });
}

const ready = (): void => console.log("ready");
const serve: Readonly<Record<Library, (socket: string) => void>> = {
  bare,
  lane,
  "grpc-js": grpcJs,
  "connect-node": connectNode,
};
const [library, socket] = process.argv.slice(2) as [Library, string];
serve[library](socket);

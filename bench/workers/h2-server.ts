/**
 * The least that answers a unary gRPC call: node:http2 on a unix socket with a message of a fixed size. What the
 * gateway's own calls are compared with.
 *
 *   node bench/workers/h2-server.ts SOCKET BYTES
 */
import { createServer, type ServerHttp2Stream } from "node:http2";

const [socket, bytes] = process.argv.slice(2) as [string, string];
const frame = Buffer.alloc(5 + Number(bytes));
frame.writeUInt32BE(Number(bytes), 1);

const server = createServer();
server.on("stream", (stream: ServerHttp2Stream) => {
  stream.resume();
  stream.on("error", () => {});
  stream.on("end", () => {
    stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.end(frame);
  });
});
server.listen(socket, () => console.log("ready"));

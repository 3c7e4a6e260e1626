/**
 * Server of the data-path measurements, in its own process and namespace: HTTPS on 443 and 8443, HTTP on 80. `/bulk/N` answers N bytes,
 * every other path 100. Reads {cert, key} from standard input and says "ready".
 */
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer as createHttpsServer } from "node:https";

const PIECE = Buffer.alloc(1 << 20, "x");
const SMALL = Buffer.alloc(100, "x");

function answer(request: IncomingMessage, response: ServerResponse): void {
  const bulk = /^\/bulk\/(\d+)$/.exec(request.url ?? "");
  request.resume();
  if (bulk === null) {
    response.setHeader("Content-Length", SMALL.length);
    response.end(SMALL);
    return;
  }
  let left = Number(bulk[1]);
  response.setHeader("Content-Length", left);
  const more = (): void => {
    while (left > 0) {
      const piece = left < PIECE.length ? PIECE.subarray(0, left) : PIECE;
      left -= piece.length;
      if (left === 0) response.end(piece);
      else if (!response.write(piece)) {
        response.once("drain", more);
        return;
      }
    }
  };
  more();
}

let text = "";
for await (const chunk of process.stdin) text += chunk;
const { cert, key } = JSON.parse(text) as { cert: string; key: string };
const options = { keepAliveTimeout: 600_000, noDelay: true };
const servers = [
  createHttpsServer({ ...options, cert, key, ALPNProtocols: ["http/1.1"] }, answer).listen(443),
  createHttpServer(options, answer).listen(80),
];
await Promise.all(servers.map((server) => new Promise((done) => server.once("listening", done))));
console.log("ready");

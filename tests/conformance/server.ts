import type { TLSSocket } from "node:tls";
import { create } from "@bufbuild/protobuf";
import { ConnectionServer } from "@openshell/gateway/http/connection-server.ts";
import { HttpLimits } from "@openshell/gateway/http/limits.ts";
import { listenTcp, listenTls } from "@openshell/gateway/http/listen.ts";
import type { Peer } from "@openshell/gateway/http/peer.ts";
import { dispatcherOf, implementationNamed } from "./implementation.ts";
import { frame, loadMessages, type ServerCompatRequest, unframe } from "./messages.ts";
import { conformanceRoutes } from "./service.ts";

/**
 * The server under test: `node server.ts IMPLEMENTATION`, started by the suite's runner, which asks for one listener on
 * standard input, is told its address on standard output, and ends the process by SIGTERM.
 */

const HOST = "127.0.0.1";
const PEER: Peer = { listener: "tcp", caller: undefined, refusal: undefined };

const implementation = implementationNamed(process.argv[2]);
const messages = loadMessages();
const input = unframe(messages.message("ServerCompatRequest"), process.stdin);
const asked = await input.next();
if (asked.done) throw new Error("no ServerCompatRequest on standard input");
const request = asked.value as ServerCompatRequest;

const dispatcher = dispatcherOf(implementation, {
  routes: conformanceRoutes(messages),
  registry: messages.registry,
  readMaxBytes: request.messageReceiveLimit === 0 ? undefined : request.messageReceiveLimit,
});
const server = new ConnectionServer(dispatcher, { streams: HttpLimits.streams, ping: false });

const needsCertificate = request.clientTlsCert.length > 0;
function accept(socket: TLSSocket): void {
  if (needsCertificate && !socket.authorized) socket.destroy();
  else server.acceptTls(socket, PEER);
}

const where = { host: HOST, port: 0 };
const credentials = request.serverCreds;
const listener =
  request.useTls && credentials !== undefined
    ? await listenTls(
        where,
        {
          cert: Buffer.from(credentials.cert),
          key: Buffer.from(credentials.key),
          ...(needsCertificate ? { ca: Buffer.from(request.clientTlsCert) } : {}),
        },
        accept,
      )
    : await listenTcp(where, (socket) => server.accept(socket, PEER));
if (typeof listener.address === "string") throw new Error("not a TCP address");

const response = messages.message("ServerCompatResponse");
const pemCert = request.useTls ? credentials?.cert : undefined;
const init = { host: HOST, port: listener.address.port, ...(pemCert === undefined ? {} : { pemCert }) };
process.stdout.write(frame(response, create(response, init as Record<string, unknown>)));
process.once("SIGTERM", () => process.exit(0));

import { createSecureServer, createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { type AddressInfo, connect } from "node:net";
import type { TLSSocket } from "node:tls";
import { createContextValues } from "@connectrpc/connect";
import {
  compressionGzip,
  connectNodeAdapter,
  createGrpcTransport,
  Http2SessionManager,
} from "@connectrpc/connect-node";
import { ConnectDriver } from "../connect-driver.ts";
import { echoRoutes, peerNameKey } from "../echo-handlers.ts";
import type { ClientOp, PeerConfig, ServerOp } from "../protocol.ts";
import { config, emit, onOrder } from "./lines.ts";

/** The peer that is connect-es: connect-node's own server and transport. */

const MESSAGE_BYTES = 4 * 1024 * 1024;

function client({ address, tls, keepaliveMs }: PeerConfig): void {
  const path = address.startsWith("unix:") ? address.slice(5) : undefined;
  const baseUrl = path === undefined ? `${tls === undefined ? "http" : "https"}://${address}` : "http://localhost";
  const ping = keepaliveMs === undefined ? {} : { pingIntervalMs: keepaliveMs, pingIdleConnection: true };
  const connection = path === undefined ? (tls ?? {}) : { createConnection: () => connect(path) };
  const sessionManager = new Http2SessionManager(baseUrl, ping, connection);
  const transport = (gzip: boolean) =>
    createGrpcTransport({
      baseUrl,
      sessionManager,
      readMaxBytes: MESSAGE_BYTES,
      ...(gzip ? { sendCompression: compressionGzip, compressMinBytes: 0 } : {}),
    });
  const driver = new ConnectDriver(transport, emit);
  onOrder<ClientOp>((op) => driver.handle(op));
}

function server({ address, tls, gzip }: PeerConfig): void {
  const handler = connectNodeAdapter({
    routes: echoRoutes(),
    readMaxBytes: MESSAGE_BYTES,
    compressMinBytes: gzip ? 0 : Number.MAX_SAFE_INTEGER,
    contextValues: ({ socket }) => {
      const certificate = tls === undefined ? undefined : (socket as TLSSocket).getPeerCertificate();
      const name = certificate?.subject?.CN;
      return createContextValues().set(peerNameKey, typeof name === "string" ? name : "");
    },
  });
  let current: { server: Http2Server; sessions: Set<ServerHttp2Session> } | undefined;
  const listen = (): void => {
    const made =
      tls === undefined
        ? createServer({}, handler)
        : createSecureServer({ ...tls, requestCert: true, rejectUnauthorized: true }, handler);
    const sessions = new Set<ServerHttp2Session>();
    made.on("session", (session) => {
      sessions.add(session as ServerHttp2Session);
      session.once("close", () => sessions.delete(session as ServerHttp2Session));
    });
    const old = current;
    current = { server: made as Http2Server, sessions };
    const ready = () => {
      const at = made.address();
      emit({ listening: typeof at === "string" ? address : `127.0.0.1:${(at as AddressInfo).port}` });
      old?.server.close();
      for (const session of old?.sessions ?? []) session.close();
    };
    if (address.startsWith("unix:")) made.listen(address.slice(5), ready);
    else made.listen(0, "127.0.0.1", ready);
  };
  listen();
  onOrder<ServerOp>(listen);
}

const settings = config();
if (settings.role === "client") client(settings);
else server(settings);

import { chmod, unlink } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import type { SecureContextOptions, TLSSocket } from "node:tls";
import { checkSocketPath, RuntimeError, systemCode } from "@openshell/base";
import type { Address } from "../config/config.ts";
import { HttpLimits } from "./limits.ts";

/** A socket that accepts. `address` is what it is bound to in the end. */
export interface Listener {
  readonly address: Address | string;
  /** Stops accepting; connections that exist are not touched. */
  close(): Promise<void>;
}

/**
 * Listens on a Unix socket with mode 0600. The caller holds the lock of the gateway's state, so a socket file that is
 * there already belongs to nobody.
 */
export async function listenUnix(path: string, onConnection: (socket: Socket) => void): Promise<Listener> {
  checkSocketPath(path);
  await unlink(path).catch((error) => {
    if (systemCode(error) !== "ENOENT") throw error;
  });
  const server = createServer({ pauseOnConnect: false }, onConnection);
  server.maxConnections = HttpLimits.connections;
  await bound(server, (done) => server.listen({ path, backlog: HttpLimits.backlog }, done));
  await chmod(path, 0o600);
  return { address: path, close: () => closed(server) };
}

/** Listens on TCP without TLS. */
export async function listenTcp(address: Address, onConnection: (socket: Socket) => void): Promise<Listener> {
  const server = createServer({ noDelay: true }, onConnection);
  return listenOn(server, address);
}

/** Listens on TCP with TLS. Client certificates are asked for, never demanded: each method decides what it needs. */
export async function listenTls(
  address: Address,
  material: SecureContextOptions,
  onConnection: (socket: TLSSocket) => void,
): Promise<Listener> {
  const { createServer: createTlsServer } = await import("node:tls");
  const server = createTlsServer(
    {
      ...material,
      minVersion: "TLSv1.2",
      ALPNProtocols: ["h2", "http/1.1"],
      requestCert: true,
      // A connection without a certificate may only reach what needs no authentication.
      rejectUnauthorized: false,
      handshakeTimeout: HttpLimits.handshakeMs,
    },
    onConnection,
  );
  server.on("tlsClientError", (_error, socket) => socket.destroy());
  return listenOn(server, address);
}

async function listenOn(server: Server, address: Address): Promise<Listener> {
  server.maxConnections = HttpLimits.connections;
  const { host, port } = address;
  await bound(server, (done) => server.listen({ host, port, backlog: HttpLimits.backlog }, done));
  const actual = server.address();
  const boundPort = typeof actual === "object" && actual !== null ? actual.port : port;
  return { address: { host, port: boundPort }, close: () => closed(server) };
}

async function bound(server: Server, listen: (done: () => void) => void): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    listen(() => {
      server.off("error", reject);
      resolve();
    });
  });
  // EMFILE and its kind: the connection is not accepted, those that exist go on.
  server.on("error", () => {});
}

function closed(server: Server): Promise<void> {
  return new Promise((resolve) => {
    // Resolves once the existing connections have ended too, which the caller sees to; accepting stops now.
    server.close(() => resolve());
    resolve();
  });
}

/**
 * The wanted address; when its port is taken and nobody asked for it by name, the second choice, else any free one.
 *
 * @throws RuntimeError listen_failed
 */
export async function listenPreferring<Result extends Listener>(
  wanted: Address & { readonly chosen: boolean },
  secondChoice: number | undefined,
  listen: (address: Address) => Promise<Result>,
): Promise<Result> {
  const { host } = wanted;
  const ports = wanted.chosen ? [wanted.port] : [wanted.port, ...(secondChoice === undefined ? [] : [secondChoice]), 0];
  let failure: unknown;
  for (const port of ports) {
    try {
      return await listen({ host, port });
    } catch (error) {
      failure = error;
      if (systemCode(error) !== "EADDRINUSE") break;
    }
  }
  throw new RuntimeError("listen_failed", `cannot listen on ${host} port ${wanted.port}: ${systemCode(failure)}`, {
    next: "Set another [openshell.gateway] bind_address, or end the program that uses it",
    cause: failure,
  });
}

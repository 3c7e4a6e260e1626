import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

/** How long a connection that was made inside may take to show here; it waits in the kernel already. Milliseconds. */
const ARRIVAL_MS = 200;

/**
 * Two listeners of the host that a sandbox must not reach: loopback TCP and an abstract Unix socket. They answer nothing,
 * and exist while a self-test runs.
 */
export interface Witness extends AsyncDisposable {
  readonly port: number;
  readonly abstractName: string;
  /** Whether somebody came. Strangers of this machine may, too: asked only about a connection that was made inside. */
  reached(): Promise<boolean>;
}

export async function openWitness(): Promise<Witness> {
  let seen = 0;
  const listen = async (options: { host: string; port: number } | { path: string }): Promise<Server> => {
    const server = createServer((socket) => {
      seen += 1;
      socket.destroy();
    });
    server.unref().listen(options);
    await once(server, "listening");
    return server;
  };
  const abstractName = `openshell-witness-${randomBytes(8).toString("hex")}`;
  const servers = await Promise.all([listen({ host: "127.0.0.1", port: 0 }), listen({ path: `\0${abstractName}` })]);
  const address = servers[0].address();
  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    abstractName,
    async reached() {
      for (let waited = 0; seen === 0 && waited < ARRIVAL_MS; waited += 10) await sleep(10);
      return seen > 0;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
    },
  };
}

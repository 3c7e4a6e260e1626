import { connect as connectSocket } from "node:net";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

export type SupervisorClient = Client<typeof SupervisorGateway>;

/** Names of the metadata that authenticate a stream (supervisor.proto). */
export const HOST_SECRET_HEADER = "openshell-host-secret";
export const SANDBOX_TOKEN_HEADER = "openshell-sandbox-token";

/**
 * The host's two connections to the gateway's host socket: one for sessions, one for bulk (relays), so that bytes never
 * delay configuration. Each is dialled on first use and again after it broke.
 */
export class GatewayLink {
  readonly sessions: SupervisorClient;
  readonly bulk: SupervisorClient;
  readonly #managers: Http2SessionManager[] = [];

  constructor(socketPath: string) {
    this.sessions = createClient(SupervisorGateway, this.#transport(socketPath));
    this.bulk = createClient(SupervisorGateway, this.#transport(socketPath));
  }

  /** Drops both connections; the next call dials anew. */
  reset(): void {
    for (const manager of this.#managers) manager.abort();
  }

  #transport(socketPath: string): Transport {
    const manager = new Http2SessionManager(
      "http://gateway.internal",
      { pingIntervalMs: 10_000, pingTimeoutMs: 20_000 },
      { createConnection: () => connectSocket(socketPath), settings: { initialWindowSize: 1024 * 1024 } },
    );
    this.#managers.push(manager);
    return createGrpcTransport({
      baseUrl: "http://gateway.internal",
      sessionManager: manager,
    });
  }
}

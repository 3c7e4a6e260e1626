import { connect as connectSocket } from "node:net";
import { type Client, createClient } from "@connectrpc/connect";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { createLaneTransport, type LaneTransport } from "@openshell/rpc";

export type SupervisorClient = Client<typeof SupervisorGateway>;

/** Names of the metadata that authenticate a stream (supervisor.proto). */
export const HOST_SECRET_HEADER = "openshell-host-secret";
export const SANDBOX_TOKEN_HEADER = "openshell-sandbox-token";

/** A gateway that has vanished without closing its socket is noticed within half a minute. */
const KEEPALIVE = { intervalMs: 10_000, timeoutMs: 20_000 };
/** SessionAccepted has both components, which the gateway bounds at 3 MiB each, and a little more. */
const MESSAGE_BYTES = 8 * 1024 * 1024;

/**
 * The host's two connections to the gateway's host socket: one for sessions, one for bulk (relays), so that bytes never
 * delay configuration. Each is dialled on first use and again after it broke.
 */
export class GatewayLink {
  readonly sessions: SupervisorClient;
  readonly bulk: SupervisorClient;
  readonly #transports: readonly LaneTransport[];

  constructor(socketPath: string) {
    const dial = () => connectSocket(socketPath);
    const open = (): LaneTransport => createLaneTransport({ dial, keepalive: KEEPALIVE, readMaxBytes: MESSAGE_BYTES });
    const sessions = open();
    const bulk = open();
    this.sessions = createClient(SupervisorGateway, sessions);
    this.bulk = createClient(SupervisorGateway, bulk);
    this.#transports = [sessions, bulk];
  }

  /** Drops both connections; the next call dials anew. */
  reset(): void {
    for (const transport of this.#transports) transport.reset();
  }
}

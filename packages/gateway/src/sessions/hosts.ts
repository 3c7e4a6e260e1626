import { create } from "@bufbuild/protobuf";
import { unauthenticated, unavailable } from "@openshell/api/errors.ts";
import {
  type AttachSandbox,
  AttachSandboxSchema,
  DetachSandboxSchema,
  type Failure,
  type HeldSandbox,
  HostAcceptedSchema,
  type HostDownlink,
  HostDownlinkSchema,
  type HostHello,
  HostRejectedSchema,
  HostShutdownSchema,
  type HostUplink,
  type SandboxToken,
  SandboxTokenSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { toDuration, toTimestamp } from "@openshell/api/times.ts";
import { type Clock, LogField } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import type { Logger } from "pino";
import { redactSecrets } from "../delivery/redaction.ts";
import type { HostLauncher } from "../hosts/types.ts";
import type { HostRecord } from "../store/types.ts";
import { failure, revisionText, SessionRefused } from "./failure.ts";
import {
  HEARTBEAT_INTERVAL_MS,
  HEARTBEAT_LIMIT_MS,
  HELLO_TIMEOUT_MS,
  HOST_QUEUE,
  MAX_HELD_SANDBOXES,
  OLDEST_PROTOCOL_REVISION,
  PROTOCOL_REVISION,
  TOKEN_RENEW_BEFORE_MS,
  TOKEN_RENEWAL_TICK_MS,
} from "./limits.ts";
import { endingWhenBroken, readWithin } from "./reader.ts";
import type { IssuedToken, TokenTable } from "./tokens.ts";

/** A sandbox that a host shall hold. */
export interface Assignment {
  readonly hostId: string;
  readonly sandboxId: string;
  readonly generation: bigint;
  /** Everything the host needs, with the token that it is given this time. */
  readonly attach: (token: SandboxToken) => AttachSandbox;
}

/** Who wants to know what hosts say. */
export interface HostEvents {
  /** The host holds sandboxes that nothing was decided about yet. */
  onHeld(hostId: string, held: readonly HeldSandbox[]): void;
  onAttachFailed(sandboxId: string, generation: bigint, reason: Failure | undefined): void;
  onDetached(sandboxId: string, generation: bigint): void;
  /** What the host showed of these sandboxes still holds. */
  onRenewed(sandboxIds: readonly string[]): void;
}

export interface HostRegistryDeps {
  readonly clock: Clock;
  readonly log: Logger;
  readonly launcher: HostLauncher;
  readonly tokens: TokenTable;
  readonly events: HostEvents;
}

/**
 * Which host shall hold which sandbox, and the streams of the hosts that are connected. An assignment made while its host
 * is away is told when it comes; all of a host's assignments are told again, with new tokens, after each reconnect.
 */
export class HostRegistry {
  readonly #deps: HostRegistryDeps;
  readonly #assignments = new Map<string, Assignment>();
  readonly #connections = new Map<string, BoundedQueue<HostDownlink>>();
  /** Assignments by host. */
  readonly #counts = new Map<string, number>();

  constructor(deps: HostRegistryDeps) {
    this.#deps = deps;
  }

  /** Gives the sandbox to a host, taking it from an earlier one. */
  assign(assignment: Assignment): void {
    const before = this.#assignments.get(assignment.sandboxId);
    if (before !== undefined) this.unassign(assignment.sandboxId, "assigned anew");
    this.#assignments.set(assignment.sandboxId, assignment);
    this.#count(assignment.hostId, 1);
    const connection = this.#connections.get(assignment.hostId);
    if (connection !== undefined) this.#sendAttach(connection, assignment);
  }

  /** Takes the sandbox from its host: its tokens end at once, the host lets go of it. */
  unassign(sandboxId: string, reason: string): void {
    const assignment = this.#assignments.get(sandboxId);
    this.#deps.tokens.revoke(sandboxId);
    if (assignment === undefined) return;
    this.#assignments.delete(sandboxId);
    this.#count(assignment.hostId, -1);
    this.detach(assignment.hostId, sandboxId, assignment.generation, reason);
  }

  /** Tells a host to let go of something that it should not hold. */
  detach(hostId: string, sandboxId: string, generation: bigint, reason: string): void {
    const connection = this.#connections.get(hostId);
    if (connection === undefined) return;
    const value = create(DetachSandboxSchema, { sandboxId, generation, reason });
    this.#send(connection, { case: "detach", value });
  }

  assignment(sandboxId: string): Assignment | undefined {
    return this.#assignments.get(sandboxId);
  }

  assignedTo(hostId: string): readonly Assignment[] {
    return [...this.#assignments.values()].filter((assignment) => assignment.hostId === hostId);
  }

  isConnected(hostId: string): boolean {
    return this.#connections.has(hostId);
  }

  /** Asks an idle host to end by itself. */
  shutdown(hostId: string, reason: string): void {
    const connection = this.#connections.get(hostId);
    if (connection === undefined) return;
    this.#send(connection, { case: "shutdown", value: create(HostShutdownSchema, { reason }) });
  }

  /** Ends every stream: the gateway stops. Hosts reconnect to its successor. */
  close(): void {
    for (const connection of this.#connections.values()) connection.close(unavailable("the gateway is stopping"));
  }

  /** Serves one ConnectHost stream. @throws ApiError UNAUTHENTICATED for a secret that no host has. */
  async *serve(secretHex: string, requests: AsyncIterable<HostUplink>): AsyncGenerator<HostDownlink, void, void> {
    const { clock, launcher, log } = this.#deps;
    const host = await launcher.authenticate(secretHex);
    if (host === undefined) throw unauthenticated("unknown host secret");
    const uplink = endingWhenBroken(requests[Symbol.asyncIterator]());
    const first = await readWithin(uplink, clock, HELLO_TIMEOUT_MS, "host hello");
    if (first === undefined) return;
    const refused = checkHello(first, host);
    if (refused !== undefined) {
      yield create(HostDownlinkSchema, {
        message: { case: "rejected", value: create(HostRejectedSchema, { failure: refused }) },
      });
      return;
    }
    const hello = first.message.value as HostHello;
    await launcher.connected(host.id, { pid: hello.pid, build: hello.build });
    // What it holds counts before anything is decided about it: a host with sandboxes must outlive a gateway that stops now.
    launcher.holds(host.id, Math.max(hello.held.length, this.assignedTo(host.id).length));
    const connection = new BoundedQueue<HostDownlink>(HOST_QUEUE);
    this.#connections.get(host.id)?.close(unavailable("replaced by a newer connection of the same host"));
    this.#connections.set(host.id, connection);
    log.info(
      { [LogField.hostId]: host.id, [LogField.instanceId]: hello.instanceId, [LogField.pid]: hello.pid },
      "host connected",
    );
    const heartbeatInterval = toDuration(HEARTBEAT_INTERVAL_MS);
    this.#send(connection, { case: "accepted", value: create(HostAcceptedSchema, { heartbeatInterval }) });
    const assigned = this.assignedTo(host.id);
    for (const assignment of assigned) this.#sendAttach(connection, assignment);
    const known = new Set(assigned.map((assignment) => assignment.sandboxId));
    this.#deps.events.onHeld(
      host.id,
      hello.held.filter((held) => !known.has(held.sandboxId)),
    );
    const ended = new AbortController();
    void this.#read(host.id, uplink, connection);
    void this.#renewTokens(host.id, connection, ended.signal);
    try {
      yield* connection;
    } finally {
      ended.abort();
      if (this.#connections.get(host.id) === connection) {
        this.#connections.delete(host.id);
        launcher.disconnected(host.id);
        log.info({ [LogField.hostId]: host.id }, "host disconnected");
      }
    }
  }

  async #read(
    hostId: string,
    uplink: AsyncIterator<HostUplink>,
    connection: BoundedQueue<HostDownlink>,
  ): Promise<void> {
    const { clock, events } = this.#deps;
    try {
      for (;;) {
        const next = await readWithin(uplink, clock, HEARTBEAT_LIMIT_MS, "heartbeat");
        if (next === undefined) break;
        const { message } = next;
        if (message.case === "attachFailed" && this.#holds(hostId, message.value.sandboxId)) {
          events.onAttachFailed(message.value.sandboxId, message.value.generation, message.value.failure);
        } else if (message.case === "detached") {
          if (this.#holds(hostId, message.value.sandboxId))
            events.onDetached(message.value.sandboxId, message.value.generation);
          this.#count(hostId, 0);
        } else if (message.case === "heartbeat") {
          const lapsed = new Set(message.value.readinessLapsed);
          events.onRenewed(
            this.assignedTo(hostId)
              .map(({ sandboxId }) => sandboxId)
              .filter((id) => !lapsed.has(id)),
          );
        }
      }
      connection.close();
    } catch (error) {
      connection.close(error instanceof SessionRefused ? unavailable(error.message) : error);
    }
  }

  /** A host is believed about its own sandboxes only. */
  #holds(hostId: string, sandboxId: string): boolean {
    return this.#assignments.get(sandboxId)?.hostId === hostId;
  }

  /** One timer a host replaces the tokens of all its sandboxes in time. */
  async #renewTokens(hostId: string, connection: BoundedQueue<HostDownlink>, signal: AbortSignal): Promise<void> {
    const { clock, tokens } = this.#deps;
    try {
      for (;;) {
        await clock.sleep(TOKEN_RENEWAL_TICK_MS, { signal, unref: true });
        for (const { sandboxId } of this.assignedTo(hostId)) {
          const current = tokens.assignment(sandboxId);
          if (current === undefined || current.expiresMs - clock.monotonic() > TOKEN_RENEW_BEFORE_MS) continue;
          const issued = tokens.renew(sandboxId);
          if (issued !== undefined) this.#send(connection, { case: "token", value: tokenMessage(issued, clock) });
        }
      }
    } catch (error) {
      if (!signal.aborted) connection.close(error);
    }
  }

  #sendAttach(connection: BoundedQueue<HostDownlink>, assignment: Assignment): void {
    const { sandboxId, generation, hostId } = assignment;
    const issued = this.#deps.tokens.assign(sandboxId, generation, hostId);
    const attach = assignment.attach(tokenMessage(issued, this.#deps.clock));
    this.#send(connection, { case: "attach", value: redactSecrets(AttachSandboxSchema, attach) });
  }

  #send(connection: BoundedQueue<HostDownlink>, message: HostDownlink["message"]): void {
    if (connection.offer(create(HostDownlinkSchema, { message })) || connection.closed) return;
    connection.close(unavailable("the host does not read its stream"));
  }

  /** Notes a change of the number of a host's sandboxes, and tells the launcher. */
  #count(hostId: string, change: number): void {
    const sandboxes = (this.#counts.get(hostId) ?? 0) + change;
    if (sandboxes === 0) this.#counts.delete(hostId);
    else this.#counts.set(hostId, sandboxes);
    this.#deps.launcher.holds(hostId, sandboxes);
  }
}

function tokenMessage({ token, claims }: IssuedToken, clock: Clock): SandboxToken {
  const { sandboxId, epoch, expiresMs } = claims;
  const expirationTime = toTimestamp(clock.now() + expiresMs - clock.monotonic());
  const message = create(SandboxTokenSchema, { sandboxId, token, epoch, expirationTime });
  return redactSecrets(SandboxTokenSchema, message);
}

function checkHello(first: HostUplink, host: HostRecord): Failure | undefined {
  if (first.message.case !== "hello") return failure("unexpected_message", "the first message must be the hello");
  const hello = first.message.value;
  if (hello.protocolRevision < OLDEST_PROTOCOL_REVISION || hello.protocolRevision > PROTOCOL_REVISION) {
    return failure("protocol_revision", revisionText(hello.protocolRevision));
  }
  if (hello.hostId !== host.id) return failure("host_mismatch", "the secret belongs to another host");
  if (hello.instanceId === "") return failure("invalid_message", "the hello has no instance_id");
  if (hello.held.length > MAX_HELD_SANDBOXES) return failure("invalid_message", "the hello names too many sandboxes");
  return undefined;
}

import { create } from "@bufbuild/protobuf";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import { failedPrecondition, invalidField, unauthenticated, unavailable } from "@openshell/api/errors.ts";
import {
  SessionRejectedSchema,
  type SupervisorDownlink,
  SupervisorDownlinkSchema,
  type SupervisorGateway,
  type SupervisorHello,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { LogField } from "@openshell/base";
import type { Logger } from "pino";
import type { RelayBroker } from "../relay/broker.ts";
import { revisionText, SessionRefused } from "./failure.ts";
import type { HostRegistry } from "./hosts.ts";
import { HELLO_TIMEOUT_MS, OLDEST_PROTOCOL_REVISION, PROTOCOL_REVISION } from "./limits.ts";
import { endingWhenBroken, readWithin } from "./reader.ts";
import type { SessionRegistry } from "./registry.ts";
import { type SessionDeps, SupervisorSession } from "./session.ts";
import type { TokenClaims, TokenTable } from "./tokens.ts";

/** Metadata of ConnectHost: the host's secret, 64 hexadecimal digits. */
export const HOST_SECRET_HEADER = "openshell-host-secret";
/** Metadata of ConnectSupervisor and Relay. */
export const SANDBOX_TOKEN_HEADER = "openshell-sandbox-token";

export interface SupervisorServiceDeps extends SessionDeps {
  readonly log: Logger;
  readonly hosts: HostRegistry;
  readonly tokens: TokenTable;
  readonly sessions: SessionRegistry;
  readonly broker: RelayBroker;
  /** A supervisor that polls was accepted. */
  readonly onPolling: (session: SupervisorSession) => void;
  /** Aborted when the gateway begins to stop. */
  readonly stopping: AbortSignal;
}

/** The service that hosts dial, on their own socket. */
export function supervisorService(deps: SupervisorServiceDeps): ServiceImpl<typeof SupervisorGateway> {
  const claimsOf = (context: HandlerContext): TokenClaims => claimsFrom(deps.tokens, context);
  return {
    connectHost(requests, context) {
      return deps.hosts.serve(context.requestHeader.get(HOST_SECRET_HEADER) ?? "", requests);
    },

    async *connectSupervisor(requests, context) {
      const claims = claimsOf(context);
      const uplink = endingWhenBroken(requests[Symbol.asyncIterator]());
      const first = await readWithin(uplink, deps.clock, HELLO_TIMEOUT_MS, "hello").catch(rejectedStream);
      if (first === undefined) return;
      let session: SupervisorSession;
      try {
        if (first.message.case !== "hello")
          throw new SessionRefused("unexpected_message", "the first message must be the hello");
        checkHello(first.message.value, claims);
        if (deps.stopping.aborted) throw unavailable("the gateway is stopping");
        session = new SupervisorSession(first.message.value, deps);
        deps.sessions.register(session);
        if (session.polls) session.onState(() => session.state === "accepted" && deps.onPolling(session));
      } catch (error) {
        yield rejection(error);
        return;
      }
      const fields = { [LogField.sandboxId]: session.sandboxId, [LogField.sessionId]: session.sessionId };
      deps.log.debug(fields, "supervisor session opened");
      const stop = (): void => session.close(unavailable("the gateway is stopping"));
      deps.stopping.addEventListener("abort", stop, { once: true });
      // Never rejects: it closes the session with what went wrong.
      void session.run(uplink);
      try {
        yield* session.outbound;
      } catch (error) {
        deps.log.warn({ ...fields, err: error }, "supervisor session failed");
        throw error;
      } finally {
        deps.stopping.removeEventListener("abort", stop);
        session.close();
        if (deps.sessions.unregister(session)) deps.backend.disconnected(session);
        deps.log.debug(fields, "supervisor session ended");
      }
    },

    async *relay(requests, context) {
      const claims = claimsOf(context);
      const uplink = requests[Symbol.asyncIterator]();
      const first = await readWithin(uplink, deps.clock, HELLO_TIMEOUT_MS, "relay hello").catch(rejectedStream);
      if (first === undefined) return;
      if (first.message.case !== "hello") throw invalidField("hello", "must be the first message");
      if (first.message.value.sandboxId !== claims.sandboxId) throw unauthenticated("the token is another sandbox's");
      yield* deps.broker.claim(first.message.value.relayId, claims.sandboxId, uplink, context.signal);
    },
  };
}

/** What the token of a call proves. @throws ApiError UNAUTHENTICATED. */
export function claimsFrom(tokens: TokenTable, context: Pick<HandlerContext, "requestHeader">): TokenClaims {
  const claims = tokens.verify(context.requestHeader.get(SANDBOX_TOKEN_HEADER) ?? "");
  if (claims === undefined) throw unauthenticated("the sandbox token is unknown, replaced or expired");
  return claims;
}

function checkHello(hello: SupervisorHello, claims: TokenClaims): void {
  if (hello.protocolRevision < OLDEST_PROTOCOL_REVISION || hello.protocolRevision > PROTOCOL_REVISION) {
    // Told as a status: a peer of another revision cannot be expected to read this one's messages.
    throw failedPrecondition(revisionText(hello.protocolRevision), {
      next: "Run gateway and supervisor of the same release, and recreate the sandbox",
    });
  }
  const same =
    hello.sandboxId === claims.sandboxId && hello.generation === claims.generation && hello.epoch === claims.epoch;
  if (!same)
    throw new SessionRefused("token_mismatch", "the hello names another sandbox, generation or epoch than the token");
  if (hello.instanceId === "") throw new SessionRefused("invalid_message", "the hello has no instance_id");
}

function rejection(error: unknown): SupervisorDownlink {
  if (!(error instanceof SessionRefused)) throw error;
  const value = create(SessionRejectedSchema, { failure: error.failure });
  return create(SupervisorDownlinkSchema, { message: { case: "rejected", value } });
}

/** A stream that never said hello has nobody to be rejected. */
function rejectedStream(error: unknown): undefined {
  if (error instanceof SessionRefused) throw unavailable(error.message);
  throw error;
}

import type { Clock } from "@openshell/base";
import { type EventLog, Finding, type OcsfEvent } from "@openshell/ocsf";
import type { ConnectionEvent, EgressEvents, FindingEvent, RequestEvent } from "../egress/events.ts";
import type { Owner } from "../egress/identify.ts";
import type { LimitEvent } from "../egress/limit-events.ts";

/** Turns what the egress path reports into security events of this sandbox. `redact` removes every live secret from texts. */
export function createEgressEvents(log: EventLog, clock: Clock, redact: (text: string) => string): EgressEvents {
  return {
    connection: (event) => log.emit(connectionEvent(event, clock.now(), redact)),
    request: (event) => log.emit(requestEvent(event, clock.now(), redact)),
    finding: (event) => log.emit(findingEvent(event, clock.now(), redact)),
    limit: (event) => log.emit(limitEvent(event, clock.now())),
  };
}

function connectionEvent(event: ConnectionEvent, time: number, redact: (text: string) => string): OcsfEvent {
  const refused = event.outcome === "denied" || event.outcome === "ended";
  return {
    class: "network",
    time,
    activity:
      event.outcome === "allowed"
        ? "open"
        : event.outcome === "ended"
          ? "reset"
          : event.outcome === "failed"
            ? "fail"
            : "refuse",
    severity: refused ? "medium" : event.outcome === "failed" ? "low" : "informational",
    status: event.outcome === "allowed" ? "success" : "failure",
    action: refused ? "denied" : "allowed",
    disposition: refused ? "blocked" : event.outcome === "failed" ? "error" : "allowed",
    destination: { host: event.host, port: event.port },
    ...processOf(event.owners),
    rule: { name: event.policy === "" ? "-" : event.policy, engine: event.engine },
    reason: redact(event.reason),
    attributes: attributesOf(event, redact),
  };
}

function requestEvent(event: RequestEvent, time: number, redact: (text: string) => string): OcsfEvent {
  const refused = event.outcome === "denied" || event.outcome === "ended";
  return {
    class: "http",
    time,
    method: event.method,
    url: { scheme: event.scheme, host: event.host, port: event.port, path: redact(event.path) },
    ...(event.status === 0 ? {} : { responseCode: event.status }),
    severity: refused ? "medium" : event.outcome === "audited" || event.outcome === "failed" ? "low" : "informational",
    status: event.outcome === "allowed" || event.outcome === "audited" ? "success" : "failure",
    action: refused ? "denied" : event.outcome === "audited" ? "observed" : "allowed",
    disposition: refused
      ? "blocked"
      : event.outcome === "audited"
        ? "logged"
        : event.outcome === "failed"
          ? "error"
          : "allowed",
    ...processOf(event.owners),
    rule: { name: event.policy === "" ? "-" : event.policy, engine: event.engine },
    reason: redact(event.reason),
    attributes: attributesOf(event, redact),
  };
}

function findingEvent(event: FindingEvent, time: number, redact: (text: string) => string): OcsfEvent {
  return {
    class: "finding",
    time,
    activity: "create",
    severity: "high",
    uid: event.uid,
    title: event.title,
    description: redact(event.description),
    confidence: "high",
    isAlert: event.uid === Finding.credentialResponseLeak || event.uid === Finding.credentialEndpointMismatch,
    attributes: { host: event.host, port: event.port, ...(event.policy === "" ? {} : { policy: event.policy }) },
  };
}

/** One finding a limit and while: the sandbox is slowed, nothing is denied that was allowed. */
function limitEvent({ limit, value, effect, next, times }: LimitEvent, time: number): OcsfEvent {
  return {
    class: "finding",
    time,
    activity: "create",
    severity: "low",
    uid: Finding.limitReached,
    title: `The sandbox met its limit ${limit} (${value}): ${effect}`,
    remediation: next,
    confidence: "high",
    attributes: { limit, value, times },
  };
}

function processOf(owners: readonly Owner[]): {
  process?: { name: string; pid: number; ancestors: readonly string[] };
} {
  const [first] = owners;
  return first === undefined
    ? {}
    : { process: { name: first.process.exe, pid: first.pid, ancestors: first.process.ancestors } };
}

function attributesOf(
  event: { readonly code: string; readonly next: string; readonly origin: string; readonly generation: number },
  redact: (text: string) => string,
): Record<string, string | number> {
  return {
    ...(event.code === "" ? {} : { code: event.code }),
    ...(event.next === "" ? {} : { next: redact(event.next) }),
    origin: event.origin,
    generation: event.generation,
  };
}

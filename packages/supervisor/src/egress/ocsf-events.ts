import type { Action, Disposition, OcsfEvent, FindingEvent as OcsfFinding, ProcessReference } from "@openshell/ocsf";
import type { ConnectionEvent, EgressEvents, FindingEvent, RequestEvent } from "./events.ts";
import type { Owner } from "./identify.ts";

/** Where events go; `EventLog` of @openshell/ocsf is one. */
export interface OcsfSink {
  emit(event: OcsfEvent): void;
}

const VERDICTS: Readonly<
  Record<
    RequestEvent["outcome"],
    { readonly action: Action; readonly disposition: Disposition; readonly failed: boolean }
  >
> = {
  allowed: { action: "allowed", disposition: "allowed", failed: false },
  audited: { action: "allowed", disposition: "logged", failed: false },
  denied: { action: "denied", disposition: "blocked", failed: true },
  ended: { action: "denied", disposition: "blocked", failed: true },
  failed: { action: "allowed", disposition: "error", failed: true },
};

/** Decisions of the egress path as OCSF events. Whatever the agent chose is escaped by the writer. */
export class OcsfEgressEvents implements EgressEvents {
  readonly #sink: OcsfSink;
  readonly #now: () => number;

  constructor(sink: OcsfSink, now: () => number = Date.now) {
    this.#sink = sink;
    this.#now = now;
  }

  connection(event: ConnectionEvent): void {
    const { action, disposition, failed } = VERDICTS[event.outcome];
    const ended = event.outcome === "ended";
    this.#sink.emit({
      class: "network",
      activity: event.outcome === "failed" ? "fail" : ended ? "reset" : "open",
      time: this.#now(),
      severity: severityOf(event.outcome),
      status: failed ? "failure" : "success",
      action,
      disposition,
      destination: { host: event.host, port: event.port },
      rule: { name: event.policy === "" ? "-" : event.policy, engine: event.engine },
      ...processOf(event.owners),
      ...(event.reason === "" ? {} : { reason: event.reason, message: event.reason }),
      attributes: attributesOf(event),
    });
  }

  request(event: RequestEvent): void {
    const { action, disposition, failed } = VERDICTS[event.outcome];
    const { method, host, port, path } = event;
    const decided = event.engine === "l7" && event.outcome !== "allowed";
    const verb = event.outcome === "audited" ? "audit" : "deny";
    const reason =
      decided && event.reason !== ""
        ? `L7_REQUEST ${verb} ${method} ${host}:${port}${path} reason=${event.reason}`
        : event.reason;
    this.#sink.emit({
      class: "http",
      time: this.#now(),
      severity: severityOf(event.outcome),
      status: failed ? "failure" : "success",
      action,
      disposition,
      method,
      url: { scheme: event.scheme, host, port, path },
      rule: { name: event.policy === "" ? "-" : event.policy, engine: event.engine },
      ...processOf(event.owners),
      ...(reason === "" ? {} : { reason, message: reason }),
      ...(event.status === 0 ? {} : { responseCode: event.status }),
      attributes: attributesOf(event),
    });
  }

  finding(event: FindingEvent): void {
    const owner = event.owners[0];
    const finding: OcsfFinding = {
      class: "finding",
      activity: "create",
      time: this.#now(),
      severity: "high",
      uid: event.uid,
      title: event.title,
      description: event.description,
      confidence: "high",
      action: "denied",
      disposition: "detected",
      isAlert: true,
      attributes: {
        host: event.host,
        port: event.port,
        policy: event.policy === "" ? "-" : event.policy,
        ...(owner === undefined ? {} : { binary: owner.process.exe, pid: owner.pid }),
      },
    };
    this.#sink.emit(finding);
  }
}

function severityOf(outcome: RequestEvent["outcome"]): "informational" | "low" | "medium" {
  if (outcome === "denied" || outcome === "ended") return "medium";
  return outcome === "failed" ? "low" : "informational";
}

function processOf(owners: readonly Owner[]): { readonly process?: ProcessReference } {
  const [owner] = owners;
  if (owner === undefined) return {};
  return { process: { name: owner.process.exe, pid: owner.pid, ancestors: owner.process.ancestors } };
}

function attributesOf(event: ConnectionEvent | RequestEvent): Readonly<Record<string, string | number>> {
  const base = { origin: event.origin, policy_version: event.generation };
  return event.code === "" ? base : { ...base, code: event.code, next: event.next };
}

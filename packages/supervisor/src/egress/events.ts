import type { DenialCode } from "./denial-code.ts";
import type { Owner } from "./identify.ts";
import type { LimitEvent } from "./limit-events.ts";

/** What the egress path reports. One decision, one event; texts that the agent chose are escaped by the sink. */
export interface EgressEvents {
  connection(event: ConnectionEvent): void;
  request(event: RequestEvent): void;
  finding(event: FindingEvent): void;
  limit(event: LimitEvent): void;
}

/** `explicit`: the client used the proxy. `transparent`: its connection was captured. */
export type Origin = "explicit" | "transparent";

/** Which part decided: policy on connections (`opa`), on requests (`l7`), destination rules (`ssrf`), … */
export type DecidingEngine =
  | "opa"
  | "ssrf"
  | "l7"
  | "http-parser"
  | "tls"
  | "identity"
  | "credential"
  | "limits"
  | "upstream";

export interface ConnectionEvent {
  /** `ended`: cut because a newer generation no longer allows it. `failed`: allowed, and then did not work out. */
  readonly outcome: "allowed" | "denied" | "ended" | "failed";
  readonly origin: Origin;
  readonly host: string;
  readonly port: number;
  readonly owners: readonly Owner[];
  /** Rule key, or empty. */
  readonly policy: string;
  readonly engine: DecidingEngine;
  /** Stable code of a denial or failure, else empty. */
  readonly code: DenialCode | "";
  readonly reason: string;
  readonly next: string;
  readonly generation: number;
}

export interface RequestEvent {
  /** `audited`: passed on although the rules would have denied it. */
  readonly outcome: "allowed" | "audited" | "denied" | "ended" | "failed";
  readonly origin: Origin;
  readonly method: string;
  readonly scheme: "http" | "https";
  readonly host: string;
  readonly port: number;
  /** Without query and without placeholders. */
  readonly path: string;
  readonly owners: readonly Owner[];
  readonly policy: string;
  readonly engine: DecidingEngine;
  readonly code: DenialCode | "";
  readonly reason: string;
  readonly next: string;
  /** Of the response that the client got; 0 when there was none. */
  readonly status: number;
  readonly generation: number;
}

/** Something that a person should look at. HIGH severity. */
export interface FindingEvent {
  /** Stable uid, e.g. `openshell.http.request_authority_mismatch`. */
  readonly uid: string;
  readonly title: string;
  readonly description: string;
  readonly host: string;
  readonly port: number;
  readonly owners: readonly Owner[];
  readonly policy: string;
}

/**
 * Events as the data path states them: what happened, to whom, why. Plain data; numbers, labels and JSON come later.
 * No field may hold a secret, a placeholder, a query string, a body or a header value.
 */
import type {
  Action,
  Confidence,
  Disposition,
  FindingActivity,
  LifecycleActivity,
  NetworkActivity,
  ProcessActivity,
  Severity,
  Status,
} from "./enums.ts";

/** Further facts, shown in the order given. */
export type Attributes = Readonly<Record<string, string | number | boolean>>;

interface EventFields {
  /** Milliseconds since the epoch. */
  readonly time: number;
  readonly severity: Severity;
  readonly status?: Status;
  readonly message?: string;
  readonly attributes?: Attributes;
}

export interface ProcessReference {
  /** Executable. */
  readonly name: string;
  readonly pid: number;
  /** Executables of the ancestors, nearest first. */
  readonly ancestors?: readonly string[];
}

export interface RuleReference {
  /** Rule key; `-` when none matched. */
  readonly name: string;
  /** What decided: opa (connections), l7 (requests), ssrf (destinations), credential-binding, … */
  readonly engine: string;
}

interface FlowFields extends EventFields {
  readonly action?: Action;
  readonly disposition?: Disposition;
  readonly process?: ProcessReference;
  readonly rule?: RuleReference;
  /** Why; shown for denials. */
  readonly reason?: string;
}

export interface NetworkEvent extends FlowFields {
  readonly class: "network";
  readonly activity: NetworkActivity;
  readonly destination: { readonly host: string; readonly port: number; readonly ip?: string };
  /** Transport, when it is not TCP. */
  readonly protocol?: string;
}

export interface HttpEvent extends FlowFields {
  readonly class: "http";
  readonly method: string;
  readonly url: {
    readonly scheme: "http" | "https";
    readonly host: string;
    readonly port: number;
    /** Canonical, without query, placeholders redacted. */
    readonly path: string;
  };
  readonly responseCode?: number;
}

export interface ProcessEvent extends EventFields {
  readonly class: "process";
  readonly activity: ProcessActivity;
  readonly process: ProcessReference;
  readonly commandLine?: string;
  readonly exitCode?: number;
}

export interface FindingEvent extends EventFields {
  readonly class: "finding";
  readonly activity: FindingActivity;
  /** Stable name of the kind, `openshell.credentials.response_leak`. */
  readonly uid: string;
  readonly title: string;
  readonly description?: string;
  readonly remediation?: string;
  readonly confidence?: Confidence;
  readonly action?: Action;
  readonly disposition?: Disposition;
  readonly isAlert?: boolean;
}

export interface ConfigEvent extends EventFields {
  readonly class: "config";
  /** `enabled`, `disabled`, or a word of its own: loaded, validated, failed, … */
  readonly state: string;
}

export interface LifecycleEvent extends EventFields {
  readonly class: "lifecycle";
  readonly activity: LifecycleActivity;
  readonly application: string;
}

export interface BaseEvent extends EventFields {
  readonly class: "base";
}

export type OcsfEvent =
  | NetworkEvent
  | HttpEvent
  | ProcessEvent
  | FindingEvent
  | ConfigEvent
  | LifecycleEvent
  | BaseEvent;

/** Names of findings, once. */
export const Finding = {
  credentialResponseLeak: "openshell.credentials.response_leak",
  credentialEndpointMismatch: "openshell.provider_credential.endpoint_mismatch",
  trafficUninspectable: "openshell.credentials.traffic_uninspectable",
  middlewareUninspectable: "openshell.middleware.traffic_uninspectable",
  authorityMismatch: "openshell.http.request_authority_mismatch",
  landlockUnavailable: "landlock-unavailable",
  isolationReduced: "openshell.isolation.reduced",
  isolationBelowMinimum: "openshell.isolation.below_minimum",
  isolationBreached: "openshell.isolation.breached",
  limitReached: "openshell.limits.reached",
  hostRestarts: "openshell.supervisor.host_restarts",
} as const;

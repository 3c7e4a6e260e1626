import type { ConnectRouter } from "@connectrpc/connect";
import type { Clock, GatewayPaths } from "@openshell/base";
import type { Logger } from "pino";
import type { GatewayConfig } from "./config/config.ts";
import type { DeliveryScheduler } from "./delivery/scheduler.ts";
import type { HostLauncher } from "./hosts/types.ts";
import type { InspectionCas } from "./pki/inspection-ca.ts";
import type { Store } from "./store/types.ts";
import type { Vault } from "./store/vault.ts";

/** Everything that the services of the gateway are given. They import no global state beside it. */
export interface GatewayDeps {
  readonly config: GatewayConfig;
  readonly paths: GatewayPaths;
  readonly build: BuildInfo;
  readonly clock: Clock;
  readonly log: Logger;
  readonly store: Store;
  /** Encrypts what the store keeps secret. */
  readonly vault: Vault;
  readonly keys: DerivedKeys;
  readonly hosts: HostLauncher;
  readonly inspectionCas: InspectionCas;
  /** Addresses that sandboxes may never reach: every TCP listener of this process, the configured resolvers and middleware services, as `IP:port` or `name:port`. */
  readonly alwaysDenied: () => readonly string[];
  /** Aborted when the gateway begins to stop: long-lived streams end with UNAVAILABLE. */
  readonly stopping: AbortSignal;
  /** How long CreateSandbox waits for the start's outcome, in milliseconds; its own limit unless given. */
  readonly startWaitMs?: number;
}

export interface BuildInfo {
  /** Released version, such as `0.1.0`. */
  readonly version: string;
  /** Identity of the built files; differs whenever the code does. */
  readonly build: string;
}

/** HMAC-SHA-256 under keys derived from the key-encryption key, one a purpose. 32 bytes out. */
export interface DerivedKeys {
  /** Request fingerprints (`requestFingerprint` of the api package). */
  readonly requestIds: (data: Uint8Array) => Uint8Array;
  /** Page tokens. */
  readonly pageTokens: (data: Uint8Array) => Uint8Array;
}

/** What `createServices` gives back: the handlers, and the part that acts by itself. */
export interface GatewayServices extends AsyncDisposable {
  /** Public API: user socket and TCP. */
  readonly userRoutes: (router: ConnectRouter) => void;
  /** SupervisorGateway: host socket. */
  readonly hostRoutes: (router: ConnectRouter) => void;
  /** Takes up unfinished operations and hosts. Called once, when all sockets listen. Must not wait for sandboxes. */
  start(): Promise<void>;
  /** What has been delivered to sandboxes, for metrics. */
  readonly delivery: Pick<DeliveryScheduler, "stats" | "counts">;
  /** Sandboxes with a running or starting workload. */
  runningSandboxes(): Promise<number>;
  /** Stops every running sandbox, waiting at most `limitMs` in all. Resolves with the number that still run. */
  stopSandboxes(limitMs: number): Promise<number>;
}

/** Exported by `api/services.ts` as `createServices`. Does no I/O beyond reading the store. */
export type CreateServices = (deps: GatewayDeps) => Promise<GatewayServices>;

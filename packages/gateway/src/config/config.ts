import type { MiddlewareRegistration } from "./middleware.ts";

/** The gateway's configuration as the rest of the gateway sees it: complete, checked, immutable. */
export interface GatewayConfig {
  readonly name: string;
  /** TCP listener for clients. `chosen`: somebody asked for this port, so another one will not do. */
  readonly bind: Address & { readonly chosen: boolean };
  readonly health: Address | undefined;
  readonly metrics: Address | undefined;
  readonly logLevel: LogLevel;
  /** TCP without TLS; loopback only, and only with `allowUnauthenticatedUsers`. */
  readonly disableTls: boolean;
  /** Every caller of the TCP listener is an administrator. */
  readonly allowUnauthenticatedUsers: boolean;
  /** Further subject alternative names of the server certificate. */
  readonly serverSans: readonly string[];
  readonly computeDriver: "local";
  readonly policyValidationFailureMode: "fail_closed" | "retain_last_valid";
  /** How often a running sandbox's configuration is compared with the store, in milliseconds. */
  readonly configConsistencyCheckMs: number;
  readonly supervisor: {
    /** One host process a workspace, or one a sandbox. */
    readonly placement: "workspace" | "sandbox";
    /** Isolation layers or levels without which no sandbox starts. */
    readonly minimumIsolation: readonly string[];
    readonly network: {
      /** PEM bundle that upstream TLS trusts beside the system's roots: path as configured and content as read at start. */
      readonly additionalCa: { readonly path: string; readonly pem: string } | undefined;
      /** `IP:port`, IPv6 in brackets; empty: the host's resolver. */
      readonly resolvers: readonly string[];
    };
    /** Middleware services that policies may name. */
    readonly middleware: readonly MiddlewareRegistration[];
  };
  readonly local: {
    /** Folders below which callers other than the gateway's own uid may name volumes. Absolute. */
    readonly volumeRoots: readonly string[];
    /** The whole table as the file has it, checked; the driver fills in its defaults. */
    readonly table: Readonly<Record<string, unknown>>;
  };
}

export interface Address {
  /** IP literal, IPv6 without brackets. */
  readonly host: string;
  readonly port: number;
}

export type LogLevel = "trace" | "debug" | "info" | "warn" | "error";

/** `host:port` with brackets around IPv6. */
export function formatAddress(address: Address): string {
  return address.host.includes(":") ? `[${address.host}]:${address.port}` : `${address.host}:${address.port}`;
}

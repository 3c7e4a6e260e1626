/**
 * A policy as data, one step above the YAML: names in camel case, `port` and `ports` united, everything else as written.
 * Absent keys stay absent (or take the neutral value named here), so that writing a policy back gives what was read.
 */

export interface Policy {
  readonly version: 1;
  /** Absent: the working folder is writable and no further path is named. */
  readonly filesystem?: FilesystemPolicy;
  readonly landlock?: LandlockPolicy;
  readonly process?: ProcessPolicy;
  /** By rule key; iteration order is the bytewise order of keys. */
  readonly networkPolicies: ReadonlyMap<string, NetworkRule>;
  /** By entry key; iteration order is the bytewise order of keys. */
  readonly networkMiddlewares: ReadonlyMap<string, Middleware>;
}

export interface FilesystemPolicy {
  readonly includeWorkdir: boolean;
  readonly readOnly: readonly string[];
  readonly readWrite: readonly string[];
}

export interface LandlockPolicy {
  readonly compatibility: "best_effort" | "hard_requirement";
}

/** `sandbox` or a decimal number 1..4294967294; empty means that the image or the driver decides. */
export interface ProcessPolicy {
  readonly runAsUser: string;
  readonly runAsGroup: string;
}

export interface NetworkRule {
  /** Name in logs; empty means the key. */
  readonly name: string;
  readonly endpoints: readonly Endpoint[];
  /** Paths or globs of executables. An empty list matches nothing. */
  readonly binaries: readonly string[];
}

export const PROTOCOLS = ["rest", "websocket", "graphql", "mcp", "json-rpc", "tcp"] as const;
export type Protocol = (typeof PROTOCOLS)[number];

export const ACCESS_PRESETS = ["read-only", "read-write", "full"] as const;
export type AccessPreset = (typeof ACCESS_PRESETS)[number];

export const MCP_VERSIONS = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] as const;

export interface Endpoint {
  /** Name, address or pattern; empty only with `allowedIps`. */
  readonly host: string;
  readonly ports: readonly number[];
  /** Selector of request paths; empty means all. */
  readonly path: string;
  /** Empty: bytes are passed on, HTTP in them is not judged. */
  readonly protocol: Protocol | "";
  readonly tls: "auto" | "skip";
  /** Empty means audit. */
  readonly enforcement: "enforce" | "audit" | "";
  readonly access: AccessPreset | "";
  readonly rules: readonly RequestRule[];
  readonly denyRules: readonly RequestRule[];
  /** Addresses and CIDRs that every resolved address must be in; empty means the default destination rules. */
  readonly allowedIps: readonly string[];
  readonly allowEncodedSlash: boolean;
  readonly websocketCredentialRewrite: boolean;
  readonly requestBodyCredentialRewrite: boolean;
  readonly allowUninspectedCredentials: boolean;
  readonly persistedQueries: "deny" | "allow_registered" | "";
  readonly graphqlPersistedQueries: ReadonlyMap<string, GraphqlOperation>;
  /** 0 means the default. */
  readonly graphqlMaxBodyBytes: number;
  /** Shared by json-rpc and mcp; 0 means the default. */
  readonly jsonRpcMaxBodyBytes: number;
  readonly mcp?: McpOptions;
  readonly credentialSigning: "sigv4" | "sigv4:body" | "sigv4:no_body" | "";
  readonly signingService: string;
  readonly signingRegion: string;
  /** Provider whose credential this endpoint takes; empty means none is bound here. */
  readonly credentialProvider: string;
  /** Stamped by the gateway, never by an author. */
  readonly advisorProposed: boolean;
  /** Stamped by the gateway, never by an author. */
  readonly providerCredentialed: boolean;
  /** Stamped by the gateway, never by an author. */
  readonly tokenGrantOwner: string;
}

export interface McpOptions {
  readonly strictToolNames?: boolean;
  readonly allowAllKnownMcpMethods?: boolean;
  readonly versions: readonly string[];
}

export interface GraphqlOperation {
  readonly operationType: string;
  readonly operationName: string;
  readonly fields: readonly string[];
}

/** One allow or deny rule. Which fields count depends on the endpoint's protocol; unused ones are empty. */
export interface RequestRule {
  readonly method: string;
  readonly path: string;
  readonly query: ReadonlyMap<string, Matcher>;
  readonly operationType: string;
  readonly operationName: string;
  readonly fields: readonly string[];
  /** Dotted names (`name` is the tool of an MCP call). */
  readonly params: ReadonlyMap<string, Matcher>;
}

/** A value matches when any of the globs does. `any` tells the list form from the plain one. */
export interface Matcher {
  readonly any: boolean;
  readonly globs: readonly string[];
}

export interface Middleware {
  /** Name in logs; empty means the key. */
  readonly name: string;
  readonly middleware: string;
  readonly order: number;
  readonly config: { readonly [key: string]: JsonValue } | undefined;
  /** Empty means fail_closed. */
  readonly onError: "fail_closed" | "fail_open" | "";
  readonly include: readonly string[];
  readonly exclude: readonly string[];
}

export type JsonValue = string | number | boolean | null | readonly JsonValue[] | { readonly [key: string]: JsonValue };

/** Every field at its neutral value; parsers fill in what the source says. */
export const EMPTY_ENDPOINT: Endpoint = {
  host: "",
  ports: [],
  path: "",
  protocol: "",
  tls: "auto",
  enforcement: "",
  access: "",
  rules: [],
  denyRules: [],
  allowedIps: [],
  allowEncodedSlash: false,
  websocketCredentialRewrite: false,
  requestBodyCredentialRewrite: false,
  allowUninspectedCredentials: false,
  persistedQueries: "",
  graphqlPersistedQueries: new Map(),
  graphqlMaxBodyBytes: 0,
  jsonRpcMaxBodyBytes: 0,
  credentialSigning: "",
  signingService: "",
  signingRegion: "",
  credentialProvider: "",
  advisorProposed: false,
  providerCredentialed: false,
  tokenGrantOwner: "",
};

export const EMPTY_RULE: RequestRule = {
  method: "",
  path: "",
  query: new Map(),
  operationType: "",
  operationName: "",
  fields: [],
  params: new Map(),
};

/** A map whose iteration order is the order of keys (code units), whatever the source's order was. */
export function sortedMap<T>(entries: Iterable<readonly [string, T]>): ReadonlyMap<string, T> {
  return new Map([...entries].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)));
}

import { CA_BUNDLE_PATH, coversJava, HOME, JAVA_TRUST_STORE_PATH, visibleInside } from "./root-view.ts";

/** Where the capture listens as an explicit proxy. */
export const PROXY_URL = "http://127.0.0.1:3128";

const DEFAULT_PATH = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/** The agent's own programs come last: they must not stand in for the system's when a person runs a command inside. */
const OWN_PROGRAMS = [`${HOME}/.local/bin`, `${HOME}/bin`];

/** Variables whose value replaces a client's own list of roots: always the merged bundle, never the inspection CA alone. */
const BUNDLE_VARIABLES = [
  "SSL_CERT_FILE", // OpenSSL, Go, Ruby, Rust (rustls-native-certs), uv, httpx
  "CURL_CA_BUNDLE",
  "GIT_SSL_CAINFO",
  "REQUESTS_CA_BUNDLE",
  "PIP_CERT",
  "CARGO_HTTP_CAINFO",
  "AWS_CA_BUNDLE",
  "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
  "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
  "NIX_SSL_CERT_FILE",
  "NODE_EXTRA_CA_CERTS", // Node, Bun, npm: added to the built-in roots
  "DENO_CERT",
];

const PROXY_VARIABLES = ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "grpc_proxy"];

/** What the environment depends on. */
export interface EnvironmentInput {
  /** Name in the synthesised passwd. */
  readonly user: string;
  readonly shell: string;
  /** PATH of the gateway's user: folders that are visible inside are appended, so that installed tools are found. */
  readonly hostPath: string;
  /** Whether the system's JVM finds the merged roots by itself; default: as this host has it. */
  readonly coversJava?: boolean;
}

/**
 * Environment every agent process starts from. Clients that honour proxy variables use the explicit proxy, all others
 * are captured; either way the certificates they meet verify against the merged bundle. Nothing here is secret.
 */
export function agentEnvironment(input: EnvironmentInput): Readonly<Record<string, string>> {
  const environment: Record<string, string> = {
    OPENSHELL_SANDBOX: "1",
    HOME,
    USER: input.user,
    LOGNAME: input.user,
    SHELL: input.shell,
    LANG: "C.UTF-8",
    PATH: searchPath(input.hostPath),
    NO_PROXY: "127.0.0.1,localhost,::1",
    no_proxy: "127.0.0.1,localhost,::1",
    // Node 24 honours the proxy variables only when told.
    NODE_USE_ENV_PROXY: "1",
  };
  // The JVM reads neither OpenSSL's variables nor PEM. Where the system's own store cannot be replaced, only this reaches
  // it; each JVM then announces it on stderr.
  if (!(input.coversJava ?? coversJava())) {
    environment.JAVA_TOOL_OPTIONS = `-Djavax.net.ssl.trustStore=${JAVA_TRUST_STORE_PATH} -Djavax.net.ssl.trustStoreType=jks`;
  }
  for (const name of BUNDLE_VARIABLES) environment[name] = CA_BUNDLE_PATH;
  for (const name of PROXY_VARIABLES) environment[name] = PROXY_URL;
  return environment;
}

function searchPath(hostPath: string): string {
  const visible = hostPath.split(":").filter((folder) => folder.startsWith("/") && visibleInside(folder));
  return [...new Set([...DEFAULT_PATH, ...visible, ...OWN_PROGRAMS])].join(":");
}

import { dirname, join } from "node:path";
import { type GatewayPaths, gatewayPaths, type PathEnvironment } from "@openshell/base";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import { isLoopback, parseAddress } from "./address.ts";
import type { Address, GatewayConfig } from "./config.ts";
import { configError } from "./errors.ts";
import { lookup, parseEnvironment, toSection, type Values } from "./inputs.ts";
import type { MiddlewareRegistration } from "./middleware.ts";
import type { FileConfig, GatewaySection } from "./schema.ts";

/** The port that clients expect a gateway on. */
export const DEFAULT_BIND: Address = { host: "127.0.0.1", port: 17_670 };
/** Name of a gateway when nobody gives one. */
export const DEFAULT_NAME = "openshell";
/** A CA bundle larger than this is a mistake: the system's own is a quarter of it. Bytes. */
const MAX_CA_BUNDLE = 1024 * 1024;
/** As much as a policy file may have. Bytes. */
const MAX_FILE_BYTES = 1024 * 1024;

export interface LoadedConfig {
  readonly config: GatewayConfig;
  readonly paths: GatewayPaths;
  /** The file that was read, if any. */
  readonly file: string | undefined;
}

/**
 * The configuration from all sources: flag, else environment, else gateway.toml, else default. The file is the one that
 * `--config` names, else `gateway.toml` in the gateway's own folder, else in the folder above it.
 *
 * @throws RuntimeError invalid_configuration naming every problem of the first source that has one
 */
export async function loadConfig(flags: Values, where: PathEnvironment): Promise<LoadedConfig> {
  const environment = parseEnvironment(where.env);
  const givenName = lookup("--name", flags, environment);
  const read = readFile(lookup("--config", flags, environment), gatewayPaths(givenName ?? DEFAULT_NAME, where));
  // The schema library is loaded only when there is a file to check.
  const file = read && (await import("./check-file.ts")).checkFile(read.path, read.text);
  const tables = file?.openshell.supervisor?.middleware;
  const middleware =
    tables === undefined || read === undefined
      ? []
      : (await import("./middleware.ts")).registrations(tables, (ca) =>
          readBundle(ca, `${read.path}: openshell.supervisor.middleware tls_ca_cert_path`),
        );
  const section: GatewaySection = {
    ...file?.openshell.gateway,
    ...toSection(environment, "environment", DEFAULT_BIND),
    ...toSection(flags, "flag", DEFAULT_BIND),
  };
  const name = givenName ?? section.name ?? DEFAULT_NAME;
  const paths = gatewayPaths(name, where);
  const config = complete(name, section, file, middleware, read?.path ?? "gateway.toml");
  return { config, paths, file: read?.path };
}

function readFile(given: string | undefined, paths: GatewayPaths): { path: string; text: string } | undefined {
  const candidates =
    given === undefined ? [paths.config, dirname(paths.config)].map((folder) => join(folder, "gateway.toml")) : [given];
  for (const path of candidates) {
    try {
      return { path, text: readTextFile(path, MAX_FILE_BYTES) };
    } catch (error) {
      if (!(error instanceof UnusableFile)) throw error;
      if (error.missing && given === undefined) continue;
      throw configError(path, error.message, "Correct the path, the file or its rights", error);
    }
  }
  return undefined;
}

function complete(
  name: string,
  section: GatewaySection,
  file: FileConfig | undefined,
  middleware: readonly MiddlewareRegistration[],
  path: string,
): GatewayConfig {
  const optional = (text: string | undefined): Address | undefined =>
    text === undefined ? undefined : parseAddress(text);
  const bind = optional(section.bind_address);
  const health = optional(section.health_bind_address);
  const metrics = optional(section.metrics_bind_address);
  const used = [bind ?? DEFAULT_BIND, health, metrics].flatMap((address) => (address?.port ? [address.port] : []));
  if (new Set(used).size !== used.length) {
    throw configError(
      "bind_address, health_bind_address, metrics_bind_address",
      "share a port",
      "Give each its own port",
    );
  }
  const isIn = (key: keyof GatewaySection) => file?.openshell.gateway?.[key] !== undefined;
  const tlsKey = isIn("disable_tls") ? `${path}: openshell.gateway.disable_tls` : "disable_tls";
  const disableTls = section.disable_tls ?? false;
  const allowUnauthenticatedUsers = section.auth?.allow_unauthenticated_users ?? false;
  if (disableTls && !allowUnauthenticatedUsers) {
    throw configError(
      tlsKey,
      "leaves the TCP listener without any authentication",
      "Remove it, or also set [openshell.gateway.auth] allow_unauthenticated_users = true",
    );
  }
  if (disableTls && !isLoopback((bind ?? DEFAULT_BIND).host)) {
    throw configError(tlsKey, "is possible on a loopback address only", "Bind to 127.0.0.1, or keep TLS");
  }
  const network = file?.openshell.supervisor?.network;
  return {
    name,
    bind: { ...(bind ?? DEFAULT_BIND), chosen: bind !== undefined && bind.port !== 0 },
    health,
    metrics,
    logLevel: section.log_level ?? "info",
    disableTls,
    allowUnauthenticatedUsers,
    serverSans: section.server_sans ?? [],
    computeDriver: section.compute_driver ?? "local",
    policyValidationFailureMode: section.policy_validation_failure_mode ?? "fail_closed",
    configConsistencyCheckMs: (section.config_consistency_check_interval_seconds ?? 30) * 1000,
    supervisor: {
      placement: file?.openshell.supervisor?.placement ?? "workspace",
      minimumIsolation: file?.openshell.supervisor?.minimum_isolation ?? [],
      network: {
        additionalCa:
          network?.additional_ca_bundle === undefined
            ? undefined
            : readBundle(network.additional_ca_bundle, `${path}: openshell.supervisor.network.additional_ca_bundle`),
        resolvers: network?.resolvers ?? [],
      },
      middleware,
    },
    local: { volumeRoots: file?.local?.volume_roots ?? [], table: file?.local ?? {} },
  };
}

function readBundle(bundle: string, where: string): { path: string; pem: string } {
  let pem: string;
  try {
    pem = readTextFile(bundle, MAX_CA_BUNDLE);
  } catch (error) {
    if (!(error instanceof UnusableFile)) throw error;
    throw configError(where, `${bundle} ${error.message}`, "Name a readable file of CA certificates", error);
  }
  if (!pem.includes("-----BEGIN CERTIFICATE-----")) {
    throw configError(where, `${bundle} holds no PEM certificate`, "Name a file of CA certificates in PEM form");
  }
  if (pem.includes("PRIVATE KEY-----")) {
    throw configError(where, `${bundle} holds a private key`, "Keep only certificates in that file");
  }
  return { path: bundle, pem };
}

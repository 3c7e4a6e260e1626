import { parse, TomlError, type TomlTable } from "smol-toml";
import type { z } from "zod";
import { configError, nearest, quoted } from "./errors.ts";
import { type FileConfig, fileSchema, keysAt } from "./schema.ts";

/** Keys of the public schema that this build does not act on: refused like unknown ones, but said so. */
const NOT_BUILT: ReadonlySet<string> = new Set([
  "credential_drivers",
  "credential_storage",
  "ssh_session_ttl_secs",
  "enable_loopback_service_http",
  "guest_tls_ca",
  "guest_tls_cert",
  "guest_tls_key",
  "grpc_rate_limit_requests",
  "grpc_rate_limit_window_seconds",
  "provider_profile_sources",
  "image_preparation_timeout_seconds",
  "mutation_admission_limit_per_caller",
  "mutation_replay_window_seconds",
  "enable_gateway_service_routing",
  "compute_driver_endpoints",
  "tls",
  "gateway_jwt",
  "mtls_auth",
  "oidc",
  "otlp",
  "ocsf_log",
  "supervisor_pool",
  "interceptors",
  "drivers",
]);

/** Problems that a message names; the rest is counted. */
const MAX_PROBLEMS = 20;

/**
 * Parses and checks a gateway.toml. All problems are named at once. An empty file is no configuration.
 *
 * @throws RuntimeError invalid_configuration
 */
export function checkFile(path: string, text: string): FileConfig | undefined {
  let document: TomlTable;
  try {
    document = parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw configError(path, "is not valid TOML", "Correct the file", error);
    // Its first line says why, the others show the place again.
    const reason = quoted(error.message.split("\n")[0]!.replace(/^Invalid TOML document: /, ""));
    throw configError(
      `${path}:${error.line}:${error.column}`,
      `is not valid TOML: ${reason}`,
      "Correct the file",
      error,
    );
  }
  if (Object.keys(document).length === 0) return undefined;
  const root = document["openshell"] as { readonly version?: unknown } | undefined;
  if (root?.version !== 2) {
    throw configError(
      path,
      `has ${versionFound(root?.version)}`,
      "Write version = 2 below [openshell]; docs list what changed since 1",
    );
  }
  const dates = [...datesIn(document)];
  if (dates.length > 0) {
    const texts = dates.map((key) => `${key} is a date or time, which no key takes`);
    throw configError(path, listed(texts), "Correct the value");
  }
  const result = fileSchema.safeParse(document);
  if (result.success) return result.data;
  const problems = result.error.issues.map(describe);
  throw configError(path, listed(problems.map(({ text: problem }) => problem)), problems[0]!.next, result.error);
}

function versionFound(version: unknown): string {
  if (version === undefined) return "no schema version";
  return ["string", "number", "boolean"].includes(typeof version)
    ? `schema version ${quoted(JSON.stringify(version))}`
    : "a schema version that is no number";
}

/** Keys with a date: an object without keys to whoever does not look closely, so that it would pass for a table. */
function* datesIn(value: unknown, path: readonly string[] = []): Iterable<string> {
  if (value instanceof Date) yield path.map(quoted).join(".");
  else if (typeof value === "object" && value !== null)
    for (const [key, inner] of Object.entries(value)) yield* datesIn(inner, [...path, key]);
}

function listed(texts: readonly string[], count = texts.length): string {
  const more = count - MAX_PROBLEMS;
  return `${texts.slice(0, MAX_PROBLEMS).join("; ")}${more > 0 ? `; and ${more} more` : ""}`;
}

interface Problem {
  readonly text: string;
  readonly next: string;
}

function describe(issue: z.core.$ZodIssue): Problem {
  if (issue.code === "unrecognized_keys") return unknownKeys(issue.path, issue.keys);
  const key = issue.path.map((part) => quoted(String(part))).join(".");
  const options = issue.code === "invalid_value" ? ` (one of ${issue.values.map(String).join(", ")})` : "";
  if (issue.code === "invalid_type" && issue.message.endsWith("received undefined"))
    return { text: `${key} is missing`, next: "Add it" };
  const message = issue.message.charAt(0).toLowerCase() + issue.message.slice(1);
  return { text: `${key} ${message}${options}`, next: "Correct the value" };
}

function unknownKeys(path: readonly PropertyKey[], keys: readonly string[]): Problem {
  const table = path.length === 0 ? "the top level" : `[${path.map(String).join(".")}]`;
  const known = keysAt(path);
  const texts = keys.slice(0, MAX_PROBLEMS).map((name) => {
    const key = name === "" ? '""' : quoted(name);
    if (NOT_BUILT.has(key)) return `${key} in ${table} is not supported by this build yet`;
    if (key === "database_url") return `${key} may not be in the file`;
    const meant = nearest(name, known);
    return `unknown key ${key} in ${table}${meant === undefined ? "" : `, did you mean ${meant}?`}`;
  });
  return { text: listed(texts, keys.length), next: `Remove it; ${table} takes ${known.join(", ")}` };
}

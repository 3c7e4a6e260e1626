/**
 * What a well-formed policy may still get wrong: the shared rules for files, for the wire and for the effective policy.
 * All violations are collected; none hides another.
 */
import { findAmbiguities } from "./ambiguity.ts";
import { endpointPath } from "./decode-endpoint.ts";
import { utf8Length } from "./document.ts";
import { Report } from "./fields.ts";
import { hasWildcard, parseGlob } from "./globs.ts";
import { PolicyLimit } from "./limits.ts";
import type { NetworkRule, Policy } from "./model.ts";
import { validateEndpoint } from "./validate-endpoint.ts";
import { validateMiddlewares } from "./validate-middleware.ts";
import { indexPath, keyPath, type Violation, type Warning } from "./violation.ts";

export interface ValidateOptions {
  /** `author` (default): reserved rule names are refused. `effective`: the gateway's own composition, which contains them. */
  readonly origin?: "author" | "effective";
}

export interface ValidationResult {
  readonly violations: readonly Violation[];
  readonly warnings: readonly Warning[];
}

/** Rules that providers contribute to the effective policy have keys with this prefix. */
export const PROVIDER_RULE_PREFIX = "_provider_";

/** Two endpoints contradict each other; the gateway answers it as a failed precondition, all others as invalid arguments. */
export const AMBIGUITY_CODE = "endpoint_ambiguity";

export function validatePolicy(policy: Policy, options: ValidateOptions = {}): ValidationResult {
  const report = new Report();
  const warnings = new Report();
  validateProcess(policy, report);
  validateFilesystem(policy, report);
  for (const [key, rule] of policy.networkPolicies) {
    if (options.origin !== "effective" && key.startsWith(PROVIDER_RULE_PREFIX)) {
      report.add(
        keyPath("network_policies", key),
        "reserved_rule_name",
        `network policy '${key}': names starting with '${PROVIDER_RULE_PREFIX}' are reserved for providers`,
        "Choose another name",
      );
    }
    validateBinaries(key, rule, report, warnings);
    for (const [index, endpoint] of rule.endpoints.entries()) {
      validateEndpoint({ rule: key, index, path: endpointPath(key, index), endpoint, report, warnings });
    }
  }
  validateMiddlewares(policy, report, warnings);
  for (const found of findAmbiguities(policy)) report.add(found.path, AMBIGUITY_CODE, found.message, found.next);
  return { violations: report.violations, warnings: warnings.violations };
}

const MAX_ID = 4_294_967_294;

/** `sandbox`, or a decimal uid or gid from 1 to 4294967294. */
export function isProcessIdentity(value: string): boolean {
  return value === "sandbox" || (/^[1-9]\d{0,9}$/.test(value) && Number(value) <= MAX_ID);
}

function validateProcess(policy: Policy, report: Report): void {
  const { process } = policy;
  if (process === undefined) return;
  for (const [field, value] of [
    ["run_as_user", process.runAsUser],
    ["run_as_group", process.runAsGroup],
  ] as const) {
    if (value === "" || isProcessIdentity(value)) continue;
    report.add(
      `process.${field}`,
      "invalid_process_identity",
      `${field} must be 'sandbox' or a numeric UID/GID in range [1, ${MAX_ID}], got '${value}'`,
      "Use 'sandbox', a number in quotes, or leave the key out",
    );
  }
}

function validateFilesystem(policy: Policy, report: Report): void {
  const { filesystem } = policy;
  if (filesystem === undefined) return;
  const count = filesystem.readOnly.length + filesystem.readWrite.length;
  if (count > PolicyLimit.filesystemPaths) {
    report.add(
      "filesystem_policy",
      "too_many_paths",
      `filesystem policy has ${count} paths, more than ${PolicyLimit.filesystemPaths}`,
      "Name parent folders instead",
    );
  }
  for (const [list, paths] of [
    ["read_only", filesystem.readOnly],
    ["read_write", filesystem.readWrite],
  ] as const) {
    for (const [index, path] of paths.entries()) {
      validatePath(path, indexPath(`filesystem_policy.${list}`, index), list === "read_write", report);
    }
  }
}

function validatePath(path: string, at: string, writable: boolean, report: Report): void {
  if (utf8Length(path) > PolicyLimit.pathBytes) {
    const shown = `${Array.from(path.slice(0, 77)).join("")}...`;
    report.add(
      at,
      "field_too_long",
      `path '${shown}' is longer than ${PolicyLimit.pathBytes} bytes`,
      "Name a shorter path",
    );
    return;
  }
  if (!path.startsWith("/")) {
    report.add(at, "relative_path", `path '${path}' is relative; it must be absolute`, "Start it with '/'");
  }
  if (path.includes("\0")) {
    report.add(at, "invalid_value", "a path contains a NUL byte", "Remove it");
  }
  if (path.split("/").includes("..")) {
    report.add(at, "path_traversal", `path '${path}' contains path traversal ('..')`, "Write the path without '..'");
  }
  if (writable && /^\/+$/.test(path)) {
    report.add(
      at,
      "overly_broad_path",
      `read_write path '${path}' is overly broad`,
      "Name the folders that the agent may write",
    );
  }
}

function validateBinaries(key: string, rule: NetworkRule, report: Report, warnings: Report): void {
  const path = keyPath("network_policies", key);
  if (rule.binaries.length === 0 && rule.endpoints.length > 0) {
    warnings.add(
      path,
      "no_binaries",
      `network policy '${key}': an empty binaries list matches no process`,
      'Name executables, or {path: "/**"} for any',
    );
  }
  for (const [index, binary] of rule.binaries.entries()) {
    const at = indexPath(keyPath(path, "binaries"), index);
    if (utf8Length(binary) > PolicyLimit.pathBytes) {
      report.add(at, "field_too_long", `network policy '${key}': a binary path is too long`, "Name a shorter path");
      continue;
    }
    const malformed = hasWildcard(binary) ? parseGlob(binary, "/") : undefined;
    if (malformed !== undefined && !malformed.ok) {
      warnings.add(
        at,
        "malformed_glob",
        `network policy '${key}': '${binary}' matches nothing: ${malformed.error}`,
        "Correct the pattern",
      );
    } else if (!binary.startsWith("/") && !binary.startsWith("*")) {
      warnings.add(
        at,
        "relative_binary",
        `network policy '${key}': binary '${binary}' is no absolute path and matches nothing`,
        "Write the full path, as `command -v` shows it inside the sandbox",
      );
    }
  }
}

/** From a document tree to a policy: shapes and types here, meaning in validate.ts. */

import { decodeEndpoint } from "./decode-endpoint.ts";
import type { Tree } from "./document.ts";
import { asInteger, asString, Fields, type Report, wrongType } from "./fields.ts";
import { type JsonValue, type Middleware, type NetworkRule, type Policy, sortedMap } from "./model.ts";
import { keyPath } from "./violation.ts";

const TOP = ["version", "filesystem_policy", "landlock", "process", "network_policies", "network_middlewares"] as const;

/** Known under other names or in other releases; the wire of this one has no place for them. */
const TOP_REFUSED = {
  filesystem: "in files the section is called filesystem_policy",
  minimum_isolation:
    "the policy messages of this API version have no field for it; demand it of the sandbox (--minimum-isolation) or of the gateway (supervisor.minimum_isolation in gateway.toml)",
};

const MIDDLEWARE = ["name", "middleware", "order", "config", "on_error", "endpoints"] as const;
const MIDDLEWARE_REFUSED = {
  on_uninspectable: "the policy messages of this API version have no field for it; on_error decides",
};

export function decodePolicy(tree: Tree | undefined, report: Report): Policy {
  const empty: Policy = { version: 1, networkPolicies: new Map(), networkMiddlewares: new Map() };
  if (tree === undefined || (tree.kind === "scalar" && tree.value === null)) {
    report.add("", "missing_key", "the policy is empty", "Start with version: 1");
    return empty;
  }
  const top = Fields.of(tree, "", TOP, report, TOP_REFUSED);
  if (top === undefined) return empty;
  decodeVersion(top, report);
  const filesystem = Fields.of(
    top.tree("filesystem_policy"),
    "filesystem_policy",
    ["include_workdir", "read_only", "read_write"],
    report,
  );
  const landlock = Fields.of(top.tree("landlock"), "landlock", ["compatibility"], report);
  const process = Fields.of(top.tree("process"), "process", ["run_as_user", "run_as_group"], report);
  const identity = {
    runAsUser: process === undefined ? "" : nonEmpty(process, "run_as_user", report),
    runAsGroup: process === undefined ? "" : nonEmpty(process, "run_as_group", report),
  };
  return {
    version: 1,
    ...(filesystem === undefined
      ? {}
      : {
          filesystem: {
            includeWorkdir: filesystem.boolean("include_workdir") ?? false,
            readOnly: filesystem.strings("read_only").map(normalisePath),
            readWrite: filesystem.strings("read_write").map(normalisePath),
          },
        }),
    ...(landlock === undefined
      ? {}
      : {
          landlock: {
            compatibility: landlock.choice("compatibility", ["best_effort", "hard_requirement"]) || "best_effort",
          },
        }),
    ...(identity.runAsUser === "" && identity.runAsGroup === "" ? {} : { process: identity }),
    networkPolicies: sortedMap(top.map("network_policies", (rule, path) => decodeRule(rule, path, report))),
    networkMiddlewares: sortedMap(
      top.map("network_middlewares", (entry, path) => decodeMiddleware(entry, path, report)),
    ),
  };
}

function decodeVersion(top: Fields, report: Report): void {
  const tree = top.tree("version");
  if (tree === undefined) {
    report.add("", "missing_key", "missing field 'version'", "Add version: 1");
    return;
  }
  const version = asInteger(tree, "version", 0, 4_294_967_295, report);
  if (version !== undefined && version !== 1) {
    report.add("version", "unsupported_version", `version must be 1, got ${version}`, "Write version: 1");
  }
}

function nonEmpty(fields: Fields, key: string, report: Report): string {
  const text = fields.string(key);
  if (text === "" && fields.has(key) && fields.tree(key)?.kind === "scalar") {
    const tree = fields.tree(key) as Extract<Tree, { kind: "scalar" }>;
    if (tree.value === "") {
      report.add(
        fields.at(key),
        "invalid_process_identity",
        `${key} must be 'sandbox' or a numeric UID/GID in range [1, 4294967294], got ''`,
        "Leave the key out to use the image's identity",
      );
    }
  }
  return text;
}

/** Collapses `//`, `/./` and a trailing `/`, without looking at the file system; `..` stays for validation to refuse. */
export function normalisePath(path: string): string {
  if (path === "") return path;
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  return path.startsWith("/") ? `/${parts.join("/")}` : parts.join("/");
}

function decodeRule(tree: Tree, path: string, report: Report): NetworkRule | undefined {
  const fields = Fields.of(tree, path, ["name", "endpoints", "binaries"], report);
  if (fields === undefined) return undefined;
  return {
    name: fields.string("name"),
    endpoints: fields.list("endpoints", (endpoint, at) => decodeEndpoint(endpoint, at, report)),
    binaries: fields.list("binaries", (binary, at) => decodeBinary(binary, at, report)),
  };
}

function decodeBinary(tree: Tree, path: string, report: Report): string | undefined {
  if (tree.kind === "scalar") return asString(tree, path, report);
  const fields = Fields.of(tree, path, ["path"], report);
  if (fields === undefined) return undefined;
  if (!fields.has("path")) report.add(path, "missing_key", "missing field 'path'", "Name the executable's path");
  return fields.string("path");
}

function decodeMiddleware(tree: Tree, path: string, report: Report): Middleware | undefined {
  const fields = Fields.of(tree, path, MIDDLEWARE, report, MIDDLEWARE_REFUSED);
  if (fields === undefined) return undefined;
  const endpoints = Fields.of(fields.tree("endpoints"), keyPath(path, "endpoints"), ["include", "exclude"], report);
  return {
    name: fields.string("name"),
    middleware: fields.string("middleware"),
    order: fields.integer("order", -2_147_483_648, 2_147_483_647) ?? 0,
    config: decodeConfig(fields, report),
    onError: fields.choice("on_error", ["fail_closed", "fail_open"]),
    include: endpoints?.strings("include") ?? [],
    exclude: endpoints?.strings("exclude") ?? [],
  };
}

function decodeConfig(fields: Fields, report: Report): Middleware["config"] {
  const tree = fields.tree("config");
  if (tree === undefined) return undefined;
  if (tree.kind !== "map") {
    wrongType(report, fields.at("config"), "a map", tree);
    return undefined;
  }
  return toJson(tree) as { [key: string]: JsonValue };
}

function toJson(tree: Tree): JsonValue {
  if (tree.kind === "list") return tree.items.map(toJson);
  if (tree.kind === "map") {
    // A null prototype, so that a key called __proto__ is a key.
    const object: { [key: string]: JsonValue } = Object.create(null);
    for (const [key, value] of tree.entries) object[key] = toJson(value);
    return object;
  }
  return typeof tree.value === "bigint" ? Number(tree.value) : tree.value;
}

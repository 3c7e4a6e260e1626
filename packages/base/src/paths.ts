import { join } from "node:path";
import { RuntimeError } from "./errors.ts";
import { escapeUntrusted } from "./escape.ts";

/** Where one gateway keeps its files. All folders end in the gateway's name (docs/architecture/overview.md). */
export interface GatewayPaths {
  readonly name: string;
  /** gateway.toml and discovery files of clients. */
  readonly config: string;
  /** Database, keys, sandboxes. 0700. */
  readonly state: string;
  /** Sockets, locks. 0700; emptied by a reboot. */
  readonly runtime: string;
  /** Gateway and host logs. */
  readonly logs: string;
}

export interface PathEnvironment {
  readonly uid: number;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly home: string;
}

/** A Unix socket path longer than this does not fit sockaddr_un on every kernel with room for a suffix. */
export const MAX_SOCKET_PATH_BYTES = 100;

/** True where the system-wide folders apply: uid 0 that was not told otherwise by XDG variables. */
export function systemWide(where: PathEnvironment): boolean {
  const set = (name: XdgVariable) => xdgFolder(where, name) !== undefined;
  return where.uid === 0 && !set("XDG_CONFIG_HOME") && !set("XDG_STATE_HOME") && !set("XDG_RUNTIME_DIR");
}

type XdgVariable = "XDG_CONFIG_HOME" | "XDG_STATE_HOME" | "XDG_RUNTIME_DIR";

/** "All paths must be absolute. If [one is] relative, consider the path invalid and ignore it" (XDG Base Directory Specification). */
function xdgFolder(where: PathEnvironment, name: XdgVariable): string | undefined {
  const folder = where.env[name];
  return folder?.startsWith("/") ? folder : undefined;
}

/** A DNS label (RFC 1123) in lower case: it becomes part of paths and of host names. */
export function isGatewayName(name: string): boolean {
  return /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name);
}

/**
 * The folders of the gateway called `name`.
 *
 * Root uses `/etc`, `/var/lib`, `/var/log` and `/run`; a user the XDG folders (runtime: `$XDG_RUNTIME_DIR`, else a `run`
 * folder under state). XDG variables set for uid 0 are honoured, so that tests and nested set-ups stay apart.
 */
export function gatewayPaths(name: string, where: PathEnvironment): GatewayPaths {
  if (!isGatewayName(name)) {
    throw new RuntimeError("invalid_gateway_name", `gateway name "${escapeUntrusted(name, 100)}" is not a DNS label`, {
      next: "Use lower-case letters, digits and hyphens, at most 63",
    });
  }
  if (systemWide(where)) {
    return {
      name,
      config: join("/etc/openshell", name),
      state: join("/var/lib/openshell", name),
      runtime: join("/run/openshell", name),
      logs: join("/var/log/openshell", name),
    };
  }
  const state = join(xdgFolder(where, "XDG_STATE_HOME") ?? join(where.home, ".local", "state"), "openshell", name);
  const runtimeRoot = xdgFolder(where, "XDG_RUNTIME_DIR");
  return {
    name,
    config: join(clientConfigRoot(where), name),
    state,
    runtime: runtimeRoot ? join(runtimeRoot, "openshell", name) : join(state, "run"),
    logs: join(state, "logs"),
  };
}

/**
 * Where clients (SDKs, CLI) look for `active_gateway` and `gateways/<name>/{metadata.json,mtls/}`:
 * `$XDG_CONFIG_HOME/openshell`, else `~/.config/openshell`, for root too, as released clients do.
 */
export function clientConfigRoot(where: PathEnvironment): string {
  return join(xdgFolder(where, "XDG_CONFIG_HOME") ?? join(where.home, ".config"), "openshell");
}

/** Refuses a socket path that the kernel could not bind everywhere. */
export function checkSocketPath(path: string): string {
  const bytes = Buffer.byteLength(path);
  if (bytes > MAX_SOCKET_PATH_BYTES) {
    throw new RuntimeError(
      "socket_path_too_long",
      `socket path of ${bytes} bytes exceeds ${MAX_SOCKET_PATH_BYTES}: ${path}`,
      {
        next: "Set XDG_RUNTIME_DIR to a shorter folder",
      },
    );
  }
  return path;
}

import { join } from "node:path";
import { type PathEnvironment, systemWide } from "@openshell/base/paths.ts";

/** The gateway as a systemd service: of the user, or of the machine where root uses the system-wide folders. */
export interface ServiceUnit {
  readonly scope: "user" | "system";
  /** `openshell-gateway-NAME.service` */
  readonly name: string;
  readonly path: string;
  /** The link that enabling it makes. */
  readonly wanted: string;
}

export function serviceUnit(gateway: string, where: PathEnvironment): ServiceUnit {
  const scope = systemWide(where) ? "system" : "user";
  const config = where.env["XDG_CONFIG_HOME"] || join(where.home, ".config");
  const folder = scope === "system" ? "/etc/systemd/system" : join(config, "systemd", "user");
  const name = `openshell-gateway-${gateway}.service`;
  return { scope, name, path: join(folder, name), wanted: join(folder, `${targetOf(scope)}.wants`, name) };
}

const targetOf = (scope: ServiceUnit["scope"]): string => (scope === "system" ? "multi-user.target" : "default.target");

/** Variables that say where a gateway's files are and where its launcher finds programs; no others go into a file. */
const KEPT_VARIABLES = ["PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"];

export interface UnitFacts {
  readonly gateway: string;
  readonly scope: ServiceUnit["scope"];
  /** The command `openshell`, by a path that stays when the build changes. */
  readonly launcher: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/**
 * The text of the unit. Its settings keep the sandboxes alive when the gateway ends: only the gateway's process is
 * signalled, and memory that runs out inside a sandbox is no failure of the service. Settings that imply no_new_privs, a
 * mount namespace or a system call filter are left out, since each of them would take from the gateway what it makes
 * sandboxes with (set-user-id helpers, mounts, namespaces).
 *
 * @throws Error when a value cannot stand in a unit file.
 */
export function unitText({ gateway, scope, launcher, env }: UnitFacts): string {
  const kept = KEPT_VARIABLES.filter((name) => env[name]).map(
    (name) => `Environment=${quoted(`${name}=${env[name]}`)}`,
  );
  return `# Written by \`openshell gateway start --service\`; \`openshell gateway stop --service\` removes it.
[Unit]
Description=OpenShell gateway ${gateway}
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart=${quoted(launcher)} gateway start --foreground --name ${gateway}
${kept.join("\n")}
Restart=on-failure
RestartSec=1
TimeoutStopSec=45
KillMode=process
OOMPolicy=continue
TasksMax=infinity
Delegate=yes
UMask=0077
LimitCORE=0

[Install]
WantedBy=${targetOf(scope)}
`;
}

/** One word of a unit file (systemd.syntax(7)): quotes and backslashes escaped, specifiers switched off. */
function quoted(text: string): string {
  if (/[\0-\x1f\x7f]/.test(text)) throw new Error("a unit file cannot hold control characters");
  return `"${text.replaceAll(/["\\]/g, "\\$&").replaceAll("%", "%%")}"`;
}

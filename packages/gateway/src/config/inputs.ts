import { isIP } from "node:net";
import { isSubjectName, parseAddress } from "./address.ts";
import type { Address } from "./config.ts";
import { formatAddress } from "./config.ts";
import { configError, nearest, quoted } from "./errors.ts";
import type { GatewaySection } from "./schema.ts";

/** One option of `serve`, its environment variable and what it means in the file. */
interface Option {
  readonly flag: string;
  readonly env: string | undefined;
  /** Taken without a value. */
  readonly boolean?: boolean;
  readonly repeated?: boolean;
}

export const OPTIONS = [
  { flag: "--config", env: "OPENSHELL_GATEWAY_CONFIG" },
  { flag: "--name", env: "OPENSHELL_GATEWAY_NAME" },
  { flag: "--bind-address", env: "OPENSHELL_BIND_ADDRESS" },
  { flag: "--port", env: "OPENSHELL_SERVER_PORT" },
  { flag: "--health-port", env: "OPENSHELL_HEALTH_PORT" },
  { flag: "--metrics-port", env: "OPENSHELL_METRICS_PORT" },
  { flag: "--log-level", env: "OPENSHELL_LOG_LEVEL" },
  { flag: "--compute-driver", env: "OPENSHELL_COMPUTE_DRIVER" },
  { flag: "--server-san", env: "OPENSHELL_SERVER_SAN", repeated: true },
  { flag: "--disable-tls", env: "OPENSHELL_DISABLE_TLS", boolean: true },
  { flag: "--ready-fd", env: undefined },
  { flag: "--auto-started", env: undefined, boolean: true },
] as const satisfies readonly Option[];

export type Flag = (typeof OPTIONS)[number]["flag"];
/** Values by flag; the last one wins unless the option repeats. */
export type Values = ReadonlyMap<Flag, readonly string[]>;

/** Reads the arguments after `serve`. @throws RuntimeError invalid_configuration */
export function parseFlags(args: readonly string[]): Values {
  const values = new Map<Flag, string[]>();
  for (let index = 0; index < args.length; index++) {
    const [name, inline] = args[index]!.split(/=(.*)/s, 2) as [string, string | undefined];
    const option: Option | undefined = OPTIONS.find(({ flag }) => flag === name);
    if (option === undefined) {
      const meant = nearest(
        name,
        OPTIONS.map(({ flag }) => flag),
      );
      throw configError(
        name,
        "is not an option of serve",
        meant === undefined ? "See --help" : `Did you mean ${meant}?`,
      );
    }
    const value = inline ?? (option.boolean ? "true" : args[++index]);
    if (value === undefined) throw configError(name, "needs a value", `Write ${name} VALUE`);
    const flag = option.flag as Flag;
    values.set(flag, option.repeated ? [...(values.get(flag) ?? []), value] : [value]);
  }
  return values;
}

/** Reads the environment; empty variables count as unset. */
export function parseEnvironment(env: Readonly<Record<string, string | undefined>>): Values {
  const found = OPTIONS.flatMap((option: Option): [Flag, readonly string[]][] => {
    const value = option.env === undefined ? undefined : env[option.env];
    if (value === undefined || value === "") return [];
    return [[option.flag as Flag, option.repeated ? value.split(",").map((part) => part.trim()) : [value]]];
  });
  return new Map(found);
}

/** The value of one option: flag, else environment. */
export function lookup(flag: Flag, flags: Values, environment: Values): string | undefined {
  return (flags.get(flag) ?? environment.get(flag))?.at(-1);
}

/**
 * What flags and environment say, in the shape of the file's gateway table. `base` is the address that a lone port or
 * host completes. @throws RuntimeError invalid_configuration
 */
export function toSection(values: Values, source: "flag" | "environment", base: Address): GatewaySection {
  const nameOf = (flag: Flag): string => {
    const option: Option = OPTIONS.find((candidate) => candidate.flag === flag)!;
    return source === "flag" ? flag : (option.env ?? flag);
  };
  const port = (flag: Flag): number | undefined => {
    const text = values.get(flag)?.at(-1);
    if (text === undefined) return undefined;
    if (!/^\d{1,5}$/.test(text) || Number(text) > 65_535)
      throw configError(nameOf(flag), "is not a port", "Use 0 to 65535");
    return Number(text);
  };
  const section: GatewaySection = {};
  const hostText = values.get("--bind-address")?.at(-1);
  const mainPort = port("--port");
  if (hostText !== undefined || mainPort !== undefined) {
    const whole = hostText === undefined ? undefined : parseAddress(hostText);
    const host = whole?.host ?? hostText ?? base.host;
    if (isIP(host) === 0)
      throw configError(nameOf("--bind-address"), "is not an IP address", "Use an address of this machine");
    section.bind_address = formatAddress({ host, port: mainPort ?? whole?.port ?? base.port });
  }
  const health = port("--health-port");
  const metrics = port("--metrics-port");
  if (health) section.health_bind_address = formatAddress({ host: base.host, port: health });
  if (metrics) section.metrics_bind_address = formatAddress({ host: base.host, port: metrics });
  const level = values.get("--log-level")?.at(-1);
  if (level !== undefined)
    section.log_level = oneOf(nameOf("--log-level"), level, ["trace", "debug", "info", "warn", "error"]);
  const driver = values.get("--compute-driver")?.at(-1);
  if (driver !== undefined) section.compute_driver = oneOf(nameOf("--compute-driver"), driver, ["local"]);
  const sans = values.get("--server-san");
  const unusable = sans?.find((name) => !isSubjectName(name));
  if (unusable !== undefined) {
    throw configError(nameOf("--server-san"), `cannot be "${quoted(unusable)}"`, "Use a host name or an IP address");
  }
  if (sans !== undefined) section.server_sans = [...sans];
  const tls = values.get("--disable-tls")?.at(-1);
  if (tls !== undefined) section.disable_tls = oneOf(nameOf("--disable-tls"), tls, ["true", "false"]) === "true";
  return section;
}

function oneOf<const Choice extends string>(name: string, text: string, choices: readonly Choice[]): Choice {
  const choice = choices.find((candidate) => candidate === text);
  if (choice === undefined) throw configError(name, `cannot be "${quoted(text)}"`, `Use one of ${choices.join(", ")}`);
  return choice;
}

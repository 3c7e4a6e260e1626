/** Variables that only the product may set: user and provider values with this prefix are left out. */
const RESERVED_PREFIX = "OPENSHELL_";
/** The one exception, in requests: the official Python package sends a pickled function in it. */
const REQUESTED_EXCEPTION = "OPENSHELL_PYFUNC_B64";

export interface EnvironmentParts {
  /** From the driver: PATH, HOME, proxy, certificates. */
  readonly base: Readonly<Record<string, string>>;
  /** Placeholders and non-secret provider values. */
  readonly providers: Readonly<Record<string, string>>;
  /** From the create or exec request. */
  readonly requested: Readonly<Record<string, string>>;
  readonly tty: boolean;
}

/**
 * The complete environment of one agent process. A request may override PATH or LANG, but neither the proxy and
 * certificate variables' purpose nor a provider's placeholder: a value that the caller set by hand for a credential's name
 * would be a real secret inside.
 */
export function processEnvironment(parts: EnvironmentParts): Record<string, string> {
  const environment: Record<string, string> = { TERM: parts.tty ? "xterm-256color" : "dumb", ...parts.base };
  for (const [name, value] of Object.entries(parts.requested)) {
    if (!name.startsWith(RESERVED_PREFIX) || name === REQUESTED_EXCEPTION) environment[name] = value;
  }
  for (const [name, value] of Object.entries(parts.providers)) {
    if (!name.startsWith(RESERVED_PREFIX)) environment[name] = value;
  }
  environment["OPENSHELL_SANDBOX"] = "1";
  return environment;
}

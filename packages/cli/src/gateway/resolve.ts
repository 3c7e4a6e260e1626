import { existsSync } from "node:fs";
import { join } from "node:path";
import { clientConfigRoot, type GatewayPaths, gatewayPaths, type PathEnvironment } from "@openshell/base/paths.ts";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import { CliError, quote, usageError } from "../errors.ts";
import type { Endpoint } from "../transport/endpoint.ts";

/** Name of the embedded gateway when nobody chose another. */
export const DEFAULT_GATEWAY = "openshell";

/** What the person said about the gateway: flags, else variables. */
export interface GatewayChoice {
  readonly name: string | undefined;
  readonly endpoint: string | undefined;
  readonly insecure: boolean;
}

/** The gateway of this command. */
export type Target =
  /** The gateway of this uid on this machine: its socket, and files from which it can be started. */
  | { readonly kind: "embedded"; readonly name: string; readonly paths: GatewayPaths; readonly endpoint: Endpoint }
  | { readonly kind: "remote"; readonly name: string; readonly endpoint: Endpoint; readonly authMode: string };

/** `gateways/<name>/metadata.json` as far as it matters here. */
export interface GatewayMetadata {
  readonly endpoint: string;
  readonly isRemote: boolean;
  readonly authMode: string;
}

const NAME = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$/;
/** Registrations and certificates are a few KiB. */
const MAX_REGISTRATION_BYTES = 1024 * 1024;
/** System-wide registrations, below those of the user. */
const SYSTEM_FOLDER = "/etc/openshell";

/** Folders with registrations, the first that knows a name wins. */
export function registrationRoots(where: PathEnvironment): readonly string[] {
  const system = where.env["OPENSHELL_SYSTEM_GATEWAY_DIR"];
  return [clientConfigRoot(where), system?.startsWith("/") === true ? system : SYSTEM_FOLDER];
}

/**
 * Finds the gateway: an endpoint in so many words, else the name from the flag, the variable or `active_gateway`, else the
 * embedded gateway. A name that has a state folder of this uid is embedded; every other one must be registered.
 */
export function resolveGateway(choice: GatewayChoice, where: PathEnvironment): Target {
  if (choice.endpoint !== undefined) return fromEndpoint(choice.endpoint, choice, where);
  const name = choice.name ?? activeGateway(where) ?? DEFAULT_GATEWAY;
  if (!NAME.test(name)) {
    throw usageError(`${quote(name)} is no name of a gateway`, "Use letters, digits, dots, hyphens and underscores");
  }
  const metadata = readMetadata(name, where);
  const own = embedded(name, where);
  if (own !== undefined && metadata?.isRemote !== true) {
    // Whoever has a socket, a state or the default name here needs no registration.
    const local = existsSync(own.paths.state) || existsSync(own.paths.runtime);
    if (local || (metadata === undefined && name === DEFAULT_GATEWAY)) return own;
  }
  if (metadata === undefined) {
    throw new CliError(`gateway ${quote(name)} is not known here`, {
      code: "gateway_unknown",
      next: `Start one of that name with \`openshell gateway start --name ${name}\`, or leave out --gateway`,
    });
  }
  return fromMetadata(name, metadata, choice, where);
}

/** The gateway of this uid called `name`; undefined when the name cannot be one's. */
export function embedded(name: string, where: PathEnvironment): (Target & { readonly kind: "embedded" }) | undefined {
  try {
    const paths = gatewayPaths(name, where);
    return { kind: "embedded", name, paths, endpoint: { kind: "unix", path: join(paths.runtime, "user.sock") } };
  } catch {
    return undefined;
  }
}

export function activeGateway(where: PathEnvironment): string | undefined {
  for (const root of registrationRoots(where)) {
    const path = join(root, "active_gateway");
    const name = readText(path)?.trim();
    if (name === undefined || name === "") continue;
    if (NAME.test(name)) return name;
    throw new CliError(`${path} holds no name of a gateway`, {
      code: "registration_unreadable",
      next: "Correct or remove it",
    });
  }
  return undefined;
}

export function readMetadata(name: string, where: PathEnvironment): GatewayMetadata | undefined {
  for (const root of registrationRoots(where)) {
    const path = join(root, "gateways", name, "metadata.json");
    const text = readText(path);
    if (text === undefined) continue;
    const wrong = (what: string, cause?: unknown) =>
      new CliError(`${path} ${what}`, { code: "registration_unreadable", next: "Correct or remove it", cause });
    let value: Record<string, unknown> | null;
    try {
      value = JSON.parse(text) as typeof value;
    } catch (error) {
      throw wrong("is not JSON", error);
    }
    const endpoint = value?.["gateway_endpoint"];
    if (typeof endpoint !== "string") throw wrong("has no gateway_endpoint");
    if (urlProblem(endpoint) !== undefined) throw wrong("has a gateway_endpoint that is no gateway URL");
    const authMode = typeof value?.["auth_mode"] === "string" ? value["auth_mode"] : "mtls";
    return { endpoint, isRemote: value?.["is_remote"] === true, authMode };
  }
  return undefined;
}

function fromEndpoint(text: string, choice: GatewayChoice, where: PathEnvironment): Target {
  const url = parseUrl(text);
  const wanted = url.href.replace(/\/+$/, "");
  const candidates = [choice.name, activeGateway(where), DEFAULT_GATEWAY].filter((name) => name !== undefined);
  // The client certificate of the registration with this endpoint, if there is one.
  const name = candidates.find((item) => {
    const registered = NAME.test(item) ? readMetadata(item, where) : undefined;
    return registered !== undefined && registered.endpoint.replace(/\/+$/, "") === wanted;
  });
  return fromMetadata(
    name ?? choice.name ?? url.hostname,
    { endpoint: text, isRemote: true, authMode: url.protocol === "http:" ? "plaintext" : "mtls" },
    choice,
    where,
  );
}

function fromMetadata(name: string, metadata: GatewayMetadata, choice: GatewayChoice, where: PathEnvironment): Target {
  const url = parseUrl(metadata.endpoint);
  if (metadata.authMode === "oidc" || metadata.authMode === "cloudflare_jwt") {
    throw new CliError(`gateway ${quote(name)} asks for a login (${metadata.authMode}), which this version cannot do`, {
      code: "login_unsupported",
      next: "Use a gateway with client certificates, or the one of this machine",
    });
  }
  if (url.protocol === "http:")
    return { kind: "remote", name, authMode: "plaintext", endpoint: { kind: "tcp", url, tls: undefined } };
  if (choice.insecure) {
    const tls = { ca: undefined, cert: undefined, key: undefined, verify: false };
    return { kind: "remote", name, authMode: "insecure", endpoint: { kind: "tcp", url, tls } };
  }
  const folder = registrationRoots(where)
    .map((root) => join(root, "gateways", name.replaceAll(/[^A-Za-z0-9._-]/g, "_"), "mtls"))
    .find((path) => existsSync(path));
  if (folder === undefined) {
    throw new CliError(`there are no client certificates for gateway ${quote(name)}`, {
      code: "certificate_missing",
      next: `Put ca.crt, tls.crt and tls.key into ${join(clientConfigRoot(where), "gateways", name, "mtls")}`,
    });
  }
  const read = (file: string): string => {
    const path = join(folder, file);
    const text = readText(path);
    const problem = text === undefined ? "is missing" : pemProblem(text, file.endsWith(".key"));
    if (text !== undefined && problem === undefined) return text;
    throw new CliError(`${path} ${problem}`, { code: "certificate_missing", next: "Copy it from the gateway" });
  };
  const tls = { ca: read("ca.crt"), cert: read("tls.crt"), key: read("tls.key"), verify: true };
  return { kind: "remote", name, authMode: "mtls", endpoint: { kind: "tcp", url, tls } };
}

/** What keeps a file from being a certificate or a key; its content is not repeated. */
function pemProblem(text: string, key: boolean): string | undefined {
  const { createPrivateKey, X509Certificate } = process.getBuiltinModule("node:crypto");
  try {
    if (key) createPrivateKey(text);
    else new X509Certificate(text);
    return undefined;
  } catch {
    return key ? "is no private key in PEM form" : "is no certificate in PEM form";
  }
}

const URL_FORM = "Write https://HOST:PORT";

function parseUrl(text: string): URL {
  const problem = urlProblem(text);
  if (problem !== undefined) throw usageError(problem, URL_FORM);
  return urlOf(text)!;
}

function urlOf(text: string): URL | null {
  return URL.parse(/^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `https://${text}`);
}

/** What is wrong with the URL of a gateway; what stands before an `@` may be a password, and is not repeated. */
function urlProblem(text: string): string | undefined {
  if (text.includes("@")) return "a gateway URL holds no user and no password";
  const url = urlOf(text);
  if (url !== null && (url.protocol === "https:" || url.protocol === "http:") && url.hostname !== "") return undefined;
  return `${quote(text)} is no gateway URL`;
}

function readText(path: string): string | undefined {
  try {
    return readTextFile(path, MAX_REGISTRATION_BYTES);
  } catch (error) {
    if (!(error instanceof UnusableFile)) throw error;
    if (error.missing) return undefined;
    throw new CliError(`${path} ${error.message}`, {
      code: "registration_unreadable",
      next: "Correct or remove it, or check its rights",
      cause: error,
    });
  }
}

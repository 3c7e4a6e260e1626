import type { Args } from "../args.ts";
import { quote, usageError } from "../errors.ts";
import type { Json } from "../transport/unary.ts";

/** One operation as requests carry it, and the option that asked for it. */
export interface Operation {
  readonly option: string;
  readonly message: Json;
  /** What it does that its author may not expect. */
  readonly warning?: string;
}

const ENDPOINT_FORM = "HOST:PORT[:ACCESS[:PROTOCOL[:ENFORCEMENT[:OPTION,…]]]]";
const REQUEST_FORM = "HOST:PORT[,PORT…]:METHOD:PATH";
const ACCESS = ["read-only", "read-write", "full"];
const PROTOCOLS = ["rest", "websocket", "tcp"];
const ENFORCEMENT = ["enforce", "audit"];

/**
 * The operations of `policy update`, in the order in which they are applied: rules are added, endpoints and rules removed, requests
 * allowed, then denied. Throws usage errors.
 */
export function operationsOf(args: Args): readonly Operation[] {
  const scope = new Scope(args);
  const operations = [
    ...args.values("add-endpoint").map((text) => scope.addEndpoint(text)),
    ...args.values("remove-endpoint").map((text) => scope.removeEndpoint(text)),
    ...args.values("remove-rule").map((ruleName) => ({
      option: `--remove-rule ${ruleName}`,
      message: { removeRule: { ruleName } },
    })),
    ...scope.requests("add-allow"),
    ...scope.requests("add-deny"),
  ];
  if (operations.length === 0)
    throw usageError(
      "nothing is to be changed",
      "Write --add-endpoint, --add-allow or another of openshell policy update --help",
    );
  return operations;
}

/** What all options of one command share: rule, executables, path. */
class Scope {
  readonly #args: Args;
  readonly #rule: string | undefined;
  readonly #binaries: readonly string[];
  readonly #any: boolean;

  constructor(args: Args) {
    this.#args = args;
    this.#rule = args.value("rule-name");
    this.#binaries = args.values("binary");
    this.#any = args.has("any-binary");
    const adds = args.count("add-endpoint");
    const requests = args.count("add-allow") + args.count("add-deny");
    const programs = this.#any || this.#binaries.length > 0;
    if (programs && adds + requests === 0)
      throw usageError(
        "--binary and --any-binary belong to what is added",
        "Write --add-endpoint, --add-allow or --add-deny",
      );
    if (!programs && adds + requests > 0)
      throw usageError("it is not said which programs may use it", "Write --binary PATH for each, or --any-binary");
    if (this.#rule !== undefined && adds > 1)
      throw usageError("--rule-name and several --add-endpoint exclude each other", "Add them one by one");
    if (this.#rule === undefined && requests > 0)
      throw usageError(
        "it is not said whose requests are meant",
        "Write --rule-name; openshell policy get --base shows the rules",
      );
    if (args.has("endpoint-path") && adds + requests === 0)
      throw usageError("--endpoint-path belongs to what is added", "Write --add-endpoint, --add-allow or --add-deny");
  }

  addEndpoint(text: string): Operation {
    const wrong = (what: string) =>
      usageError(`--add-endpoint ${quote(text)}: ${what}`, `Write --add-endpoint ${ENDPOINT_FORM}`);
    const { host, rest } = splitHost(text, wrong);
    const [port = "", access = "", protocol = "", enforcement = "", ...options] = rest;
    const oneOf = (value: string, choices: readonly string[], what: string): void => {
      if (value !== "" && !choices.includes(value))
        throw wrong(`${what} is ${choices.join(", ")}, not ${quote(value)}`);
    };
    oneOf(access, ACCESS, "access");
    oneOf(protocol, PROTOCOLS, "the protocol");
    oneOf(enforcement, ENFORCEMENT, "enforcement");
    if (enforcement !== "" && protocol === "") throw wrong("enforcement needs a protocol");
    if (protocol === "tcp" && access + enforcement !== "")
      throw wrong("protocol tcp takes no access and no enforcement");
    const ports = [portOf(port, wrong)];
    const path = this.#args.value("endpoint-path");
    const endpoint = {
      host,
      ports,
      ...(access === "" ? {} : { access: `NETWORK_ACCESS_PRESET_${enumName(access)}` }),
      ...(protocol === "" ? {} : { protocol }),
      ...(enforcement === "" ? {} : { enforcement: `NETWORK_ENFORCEMENT_MODE_${enumName(enforcement)}` }),
      ...(path === undefined ? {} : { path }),
      // Addresses of IPv6 hold colons themselves.
      ...endpointOptions(options.join(":"), protocol, wrong),
    };
    const binaries = (this.#any ? ["**"] : this.#binaries).map((binary) => ({ path: binary }));
    const ruleName = this.#rule ?? generatedName(host, ports[0]!);
    const auditOnly = protocol !== "" && protocol !== "tcp" && access !== "" && access !== "full" && enforcement === "";
    return {
      ...(auditOnly
        ? {
            warning: `${host}: requests beyond ${access} are let through and only logged; write ${access}:${protocol}:enforce`,
          }
        : {}),
      option: `--add-endpoint ${text}`,
      message: { addRule: { ruleName, rule: { endpoints: [endpoint], binaries } } },
    };
  }

  removeEndpoint(text: string): Operation {
    const wrong = (what: string) =>
      usageError(`--remove-endpoint ${quote(text)}: ${what}`, "Write --remove-endpoint HOST:PORT");
    const { host, rest } = splitHost(text, wrong);
    if (rest.length !== 1) throw wrong("it has more than host and port");
    const removeEndpoint = { ruleName: this.#rule ?? "", host, port: portOf(rest[0]!, wrong) };
    return { option: `--remove-endpoint ${text}`, message: { removeEndpoint } };
  }

  /** All requests at one endpoint become one operation. */
  requests(option: "add-allow" | "add-deny"): readonly Operation[] {
    const groups = new Map<string, { host: string; ports: number[]; rules: Json[]; texts: string[] }>();
    for (const text of this.#args.values(option)) {
      const wrong = (what: string) =>
        usageError(`--${option} ${quote(text)}: ${what}`, `Write --${option} ${REQUEST_FORM}`);
      const { host, rest } = splitHost(text, wrong);
      const [portList = "", method = "", ...paths] = rest;
      const path = paths.join(":");
      const ports = portList.split(",").map((port) => portOf(port, wrong));
      if (!/^(\*|[A-Za-z][A-Za-z0-9_-]*)$/.test(method)) throw wrong("it has no method");
      if (!path.startsWith("/") && path !== "**" && !path.startsWith("**/"))
        throw wrong('the path begins with "/" or "**"');
      const key = `${host} ${ports.toSorted((a, b) => a - b).join(",")}`;
      const group = groups.get(key) ?? { host, ports, rules: [], texts: [] };
      group.rules.push({ method: method.toUpperCase(), path });
      group.texts.push(`--${option} ${text}`);
      groups.set(key, group);
    }
    return [...groups]
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([, { host, ports, rules, texts }]) => {
        const path = this.#args.value("endpoint-path");
        const target = {
          ruleName: this.#rule ?? "",
          host,
          ports,
          ...(path === undefined ? {} : { path }),
          ...(this.#any ? { anyBinary: true } : { binaries: this.#binaries.map((binary) => ({ path: binary })) }),
        };
        const message =
          option === "add-allow"
            ? { addAllowRules: { target, rules: rules.map((allow) => ({ allow })) } }
            : { addDenyRules: { target, denyRules: rules } };
        return { option: texts.join(" "), message };
      });
  }
}

type Wrong = (what: string) => Error;

/** `host:…` and `[address]:…`, parted at the colons that follow. */
function splitHost(text: string, wrong: Wrong): { readonly host: string; readonly rest: readonly string[] } {
  const parts = /^(\[[0-9A-Fa-f:.]+\]|[^:[\]]+):(.*)$/.exec(text);
  if (parts === null) throw wrong("it is no host and port");
  return { host: parts[1]!.replace(/^\[|\]$/g, ""), rest: parts[2]!.split(":") };
}

function portOf(text: string, wrong: Wrong): number {
  const port = Number(text);
  if (!/^\d{1,5}$/.test(text) || port < 1 || port > 65_535) throw wrong(`${quote(text)} is no port from 1 to 65535`);
  return port;
}

function endpointOptions(text: string, protocol: string, wrong: Wrong): Json {
  const result: Record<string, unknown> = {};
  const allowedIps: string[] = [];
  for (const option of text === "" ? [] : text.split(",")) {
    if (option.startsWith("allowed-ip=")) allowedIps.push(option.slice("allowed-ip=".length));
    else if (option === "allow-uninspected-credentials") result["allowUninspectedCredentials"] = true;
    else if (option === "websocket-credential-rewrite" && ["rest", "websocket"].includes(protocol))
      result["websocketCredentialRewrite"] = true;
    else if (option === "request-body-credential-rewrite" && protocol === "rest")
      result["requestBodyCredentialRewrite"] = true;
    else throw wrong(`${quote(option)} is no option of protocol ${protocol || "(none)"}`);
  }
  return allowedIps.length === 0 ? result : { ...result, allowedIps };
}

function enumName(word: string): string {
  return word.toUpperCase().replaceAll("-", "_");
}

/** The key of a rule that nobody named. */
export function generatedName(host: string, port: number): string {
  return `allow_${host.toLowerCase().replace(/[^a-z0-9_]/g, "_")}_${port}`;
}

import { parseArgs } from "node:util";
import { quote, usageError } from "./errors.ts";
import { nearestName } from "./nearest.ts";

/** What a word names, so that a shell can offer what there is. */
export type NameKind = "sandboxes" | "providers" | "workspaces" | "gateways" | "revisions" | "rules";

/** One option of a command. */
export interface Flag {
  /** Without the leading dashes. */
  readonly long: string;
  readonly short?: string;
  /** Placeholder of its value; absent for a switch. In brackets (`[N]`) when the value may be left out (`--gpu`, `--gpu=2`). */
  readonly value?: string;
  /** May be given more than once. */
  readonly many?: boolean;
  /** An empty value says something; of every other option it is a variable of the shell that is not set. */
  readonly mayBeEmpty?: boolean;
  readonly help: string;
  /** What its value names. */
  readonly names?: NameKind;
  /** Variable that gives the value when the option does not. */
  readonly env?: string;
  readonly choices?: readonly string[];
  /** Long names of options that exclude this one. */
  readonly conflicts?: readonly string[];
  readonly hidden?: boolean;
}

export interface Positional {
  readonly name: string;
  /** What it names. */
  readonly names?: NameKind;
  readonly choices?: readonly string[];
  readonly required?: boolean;
  readonly many?: boolean;
}

/** Everything that parsing, help and completion know of a command. */
export interface CommandSpec {
  /** Words, such as `["sandbox", "create"]`. */
  readonly path: readonly string[];
  readonly summary: string;
  readonly positionals?: readonly Positional[];
  readonly flags: readonly Flag[];
  /** A program to run may follow: after `--`, or (`direct`) from the first word that is no option. */
  readonly trailing?: "separated" | "direct";
  readonly trailingRequired?: boolean;
  /** Lines under EXAMPLES. */
  readonly examples?: readonly string[];
  /** Paragraphs under the usage line. */
  readonly about?: readonly string[];
}

/** What every command accepts. */
export const GLOBAL_FLAGS: readonly Flag[] = [
  {
    long: "gateway",
    short: "g",
    value: "NAME",
    names: "gateways",
    env: "OPENSHELL_GATEWAY",
    help: "gateway to use",
  },
  {
    long: "gateway-endpoint",
    value: "URL",
    env: "OPENSHELL_GATEWAY_ENDPOINT",
    help: "gateway URL, without registration",
  },
  {
    long: "gateway-insecure",
    env: "OPENSHELL_GATEWAY_INSECURE",
    help: "do not verify the gateway's certificate (and send none)",
  },
  {
    long: "workspace",
    value: "NAME",
    names: "workspaces",
    env: "OPENSHELL_WORKSPACE",
    help: "workspace (default: default)",
  },
  {
    long: "color",
    value: "WHEN",
    env: "OPENSHELL_COLOR",
    choices: ["auto", "always", "never"],
    help: "auto, always or never",
  },
  { long: "verbose", short: "v", many: true, help: "say which gateway is used; twice: every call too" },
  { long: "help", short: "h", help: "this help" },
  { long: "version", short: "V", help: "version" },
];

/** The parsed command line of one command. */
export interface Args {
  /** The option was given. */
  has(long: string): boolean;
  /** Value of the option: the last one given, else its variable's; undefined when there is none. */
  value(long: string): string | undefined;
  values(long: string): readonly string[];
  /** How often it was given. */
  count(long: string): number;
  /** `--x` and `--no-x` override each other; undefined when neither was given. */
  either(long: string): boolean | undefined;
  readonly positionals: readonly string[];
  /** The program to run and its arguments. */
  readonly command: readonly string[];
}

/** A switch set through a variable. */
export function isTruthy(text: string | undefined): boolean {
  return text !== undefined && text !== "" && text !== "0" && text.toLowerCase() !== "false";
}

type Given = { readonly long: string; readonly value: string | undefined };

/** Parses `argv` (without the words of the command). Throws usage errors that name the valid spelling. */
export function parseCommandLine(
  spec: CommandSpec,
  argv: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): Args {
  const flags = [...spec.flags, ...GLOBAL_FLAGS];
  const { options, command } = split(spec, flags, argv);
  const { tokens } = parseArgs({ args: [...options], options: declarations(flags), strict: false, tokens: true });
  const given: Given[] = [];
  const positionals: string[] = [];
  for (const token of tokens) {
    if (token.kind === "positional") positionals.push(token.value);
    if (token.kind === "option") given.push(check(spec, flags, token));
  }
  checkConflicts(spec, flags, given);
  checkPositionals(spec, positionals);
  const wantsHelp = given.some(({ long }) => long === "help" || long === "version");
  if (spec.trailingRequired === true && command.length === 0 && !wantsHelp) {
    throw usageError("no command was given", `Put it behind "--": openshell ${spec.path.join(" ")} … -- COMMAND`);
  }
  const find = (long: string): Given | undefined => given.findLast((item) => item.long === long);
  const envOf = (long: string): string | undefined => {
    const flag = flags.find((item) => item.long === long);
    const value = flag?.env === undefined ? undefined : env[flag.env];
    if (flag === undefined || value === undefined || value.trim() === "") return undefined;
    checkChoice(flag, value, `$${flag.env}`);
    return value;
  };
  return {
    has: (long) => find(long) !== undefined || (isSwitch(flags, long) && isTruthy(envOf(long))),
    value: (long) => find(long)?.value ?? envOf(long),
    values: (long) => given.filter((item) => item.long === long).map((item) => item.value ?? ""),
    count: (long) => given.filter((item) => item.long === long).length,
    either: (long) => {
      const last = given.findLast((item) => item.long === long || item.long === `no-${long}`);
      return last === undefined ? undefined : last.long === long;
    },
    positionals,
    command,
  };
}

/** Separates options and positionals from the program to run. */
function split(spec: CommandSpec, flags: readonly Flag[], argv: readonly string[]) {
  const separator = argv.indexOf("--");
  if (spec.trailing === "direct") {
    const before = separator === -1 ? argv : argv.slice(0, separator);
    const { tokens } = parseArgs({ args: [...before], options: declarations(flags), strict: false, tokens: true });
    const first = tokens.find((token) => token.kind === "positional");
    if (first !== undefined) return { options: argv.slice(0, first.index), command: argv.slice(first.index) };
  }
  if (separator === -1) return { options: argv, command: [] };
  const command = argv.slice(separator + 1);
  if (spec.trailing === undefined && command.length > 0) {
    throw usageError(`openshell ${spec.path.join(" ")} runs no command`, 'Remove "--" and what follows');
  }
  return { options: argv.slice(0, separator), command };
}

function declarations(flags: readonly Flag[]) {
  return Object.fromEntries(
    flags.map((flag) => [
      flag.long,
      {
        type: flag.value === undefined || flag.value.startsWith("[") ? ("boolean" as const) : ("string" as const),
        multiple: true,
        ...(flag.short === undefined ? {} : { short: flag.short }),
      },
    ]),
  );
}

interface OptionToken {
  readonly name: string;
  readonly rawName: string;
  readonly value?: string | undefined;
  readonly inlineValue?: boolean | undefined;
}

function check(spec: CommandSpec, flags: readonly Flag[], token: OptionToken): Given {
  const flag = flags.find((item) => item.long === token.name);
  if (flag === undefined) {
    const near = nearestName(
      token.name,
      flags.filter((item) => !item.hidden).map((item) => item.long),
    );
    const next = near === undefined ? `See openshell ${spec.path.join(" ")} --help` : `Did you mean --${near}?`;
    throw usageError(`unknown option ${token.rawName}`, next);
  }
  if (flag.value === undefined) {
    if (token.value !== undefined) throw usageError(`${token.rawName} takes no value`, `Write ${token.rawName} alone`);
    return { long: flag.long, value: undefined };
  }
  if (flag.value.startsWith("[")) return { long: flag.long, value: token.value };
  const looksLikeOption = token.inlineValue !== true && /^-./.test(token.value ?? "");
  if (token.value === undefined || looksLikeOption) {
    throw usageError(
      `${token.rawName} needs a value`,
      `Write ${token.rawName}${token.rawName.startsWith("--") ? "=" : " "}${flag.value}`,
    );
  }
  if (token.value === "" && flag.mayBeEmpty !== true) {
    throw usageError(`${token.rawName} has an empty value`, `Write ${token.rawName}=${flag.value}, or leave it out`);
  }
  checkChoice(flag, token.value, token.rawName);
  return { long: flag.long, value: token.value };
}

function checkChoice(flag: Flag, value: string, where: string): void {
  if (flag.choices === undefined || flag.choices.includes(value)) return;
  throw usageError(`${where}: ${quote(value)} is not possible`, `Use one of: ${flag.choices.join(", ")}`);
}

function checkConflicts(spec: CommandSpec, flags: readonly Flag[], given: readonly Given[]): void {
  const names = new Set(given.map((item) => item.long));
  for (const flag of flags) {
    if (!names.has(flag.long)) continue;
    if (flag.many !== true && given.filter((item) => item.long === flag.long).length > 1 && flag.value !== undefined) {
      throw usageError(`--${flag.long} is given twice`, "Keep one of them");
    }
    const other = flag.conflicts?.find((name) => names.has(name));
    if (other !== undefined) {
      throw usageError(
        `--${flag.long} and --${other} exclude each other`,
        `See openshell ${spec.path.join(" ")} --help`,
      );
    }
  }
}

function checkPositionals(spec: CommandSpec, given: readonly string[]): void {
  const wanted = spec.positionals ?? [];
  const help = `See openshell ${spec.path.join(" ")} --help`;
  const empty = given.indexOf("");
  if (empty !== -1) throw usageError(`${wanted[empty]?.name ?? wanted.at(-1)?.name ?? "an argument"} is empty`, help);
  if (given.length > wanted.length && wanted.at(-1)?.many !== true) {
    const extra = given[wanted.length]!;
    throw usageError(
      `unexpected argument ${quote(extra)}`,
      spec.trailing === "separated" ? `Put the command to run behind "--"` : help,
    );
  }
}

/** For commands: a required positional that is missing is an error only when nobody asked for help. */
export function requirePositional(args: Args, index: number, what: string, spec: CommandSpec): string {
  const value = args.positionals[index];
  if (value === undefined || value === "") {
    throw usageError(`${what} is missing`, `See openshell ${spec.path.join(" ")} --help`);
  }
  return value;
}

function isSwitch(flags: readonly Flag[], long: string): boolean {
  return flags.some((flag) => flag.long === long && flag.value === undefined);
}

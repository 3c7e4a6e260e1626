import { homeFolder } from "@openshell/base/home.ts";
import { type Args, type CommandSpec, parseCommandLine } from "./args.ts";
import { VERSION } from "./build-info.ts";
import { type CommandEntry, findCommand, type Group, subgroup } from "./commands/index.ts";
import { Context, type Surroundings } from "./context.ts";
import { EXIT, errorLines, quote, toCliError, usageError } from "./errors.ts";
import { styleFor } from "./output/style.ts";
import { writeAll } from "./output/terminal.ts";

/** What a command module exports. */
export interface CommandModule {
  readonly spec: CommandSpec;
  /** Resolves with the exit status. */
  run(context: Context, args: Args): Promise<number>;
}

/** Options before the command that take a value. */
const VALUED = new Set(["-g", "--gateway", "--gateway-endpoint", "--workspace", "--color"]);

/** What the completions of shells ask: the shell's name, and the words up to the cursor. */
const COMPLETE = "__complete";

/** What Node puts for bytes that are not UTF-8. */
const REPLACEMENT = "\ufffd";

/** The words that name a command, where they stand, and the rest of the line. */
export function splitWords(argv: readonly string[], most: number): { words: string[]; rest: string[] } {
  const words: string[] = [];
  const rest: string[] = [];
  for (let index = 0; index < argv.length; index += 1) {
    const argument = argv[index]!;
    if (argument === "--" || words.length === most) return { words, rest: [...rest, ...argv.slice(index)] };
    if (!argument.startsWith("-") || argument === "-") {
      words.push(argument);
      continue;
    }
    rest.push(argument);
    if (VALUED.has(argument) && index + 1 < argv.length) {
      index += 1;
      rest.push(argv[index]!);
    }
  }
  return { words, rest };
}

/** Runs one command line; resolves with the exit status. Never throws. */
export async function dispatch(
  argv: readonly string[],
  surroundings: Surroundings = processSurroundings(),
): Promise<number> {
  // Nobody reads any more (`| head`): there is nothing to tell and nobody to tell it.
  surroundings.stdout.on("error", () => {});
  surroundings.stderr.on("error", () => {});
  try {
    return await route(argv, surroundings);
  } catch (error) {
    if ((error as { code?: unknown }).code === "EPIPE") return EXIT.delivery;
    const shown = toCliError(error);
    const style = styleFor(surroundings.stderr.isTTY === true, "auto", surroundings.env);
    const lines = errorLines(shown, (text) => style.bold(text.startsWith("error") ? style.red(text) : text));
    await writeAll(surroundings.stderr, `${lines.join("\n")}\n`).catch(() => {});
    return shown.exitCode;
  }
}

async function route(argv: readonly string[], surroundings: Surroundings): Promise<number> {
  if (argv[0] === COMPLETE) {
    const { complete } = await import("./complete/complete.ts");
    return complete(argv.slice(1), surroundings);
  }
  if (argv.some((item) => item.includes(REPLACEMENT))) {
    const { refuseUndecodable } = await import("./undecodable.ts");
    refuseUndecodable(argv, surroundings.commandLine);
  }
  const first = splitWords(argv, 1);
  const word = first.words[0];
  if (word === undefined) {
    if (first.rest.some((item) => item === "-V" || item === "--version")) return printVersion(surroundings);
    refuseUnknown(first.rest, "See openshell --help");
    const { rootHelp } = await import("./help.ts");
    await writeAll(surroundings.stdout, rootHelp(helpStyle(surroundings)));
    return EXIT.ok;
  }
  // People type it: `help`, `help run`, `help sandbox create`.
  if (word === "help") return route([...argv.toSpliced(argv.indexOf(word), 1), "--help"], surroundings);
  const found = findCommand(word);
  if (found === undefined) throw await unknownCommand(word);
  if (!("commands" in found)) return runCommand(found, first.rest, surroundings);
  return routeGroup(found, 1, argv, surroundings);
}

/** `depth`: words of the line that name the group. */
async function routeGroup(
  group: Group,
  depth: number,
  argv: readonly string[],
  surroundings: Surroundings,
): Promise<number> {
  const { words, rest } = splitWords(argv, depth + 1);
  const next = words[depth];
  if (next === undefined) {
    if (rest.some((item) => item === "-V" || item === "--version")) return printVersion(surroundings);
    refuseUnknown(rest, `See openshell ${group.name} --help`);
    const { groupHelp } = await import("./help.ts");
    await writeAll(surroundings.stdout, groupHelp(group, helpStyle(surroundings)));
    return EXIT.ok;
  }
  const entry = group.commands.find((item) => item.name === next);
  if (entry === undefined) {
    const nested = subgroup(group, next);
    if (nested !== undefined) return routeGroup(nested, depth + 1, argv, surroundings);
    if (NOT_BUILT[group.name]?.includes(next)) throw notBuilt(`${group.name} ${next}`);
    const { meantInGroup } = await import("./suggest.ts");
    const meant = meantInGroup(group, next);
    const help = meant === undefined ? `See openshell ${group.name} --help` : `Did you mean openshell ${meant}?`;
    throw usageError(`openshell ${words.slice(0, depth).join(" ")} has no command ${quote(next)}`, help);
  }
  return runCommand(entry, rest, surroundings);
}

async function runCommand(entry: CommandEntry, rest: readonly string[], surroundings: Surroundings): Promise<number> {
  const module = await entry.load();
  const args = parseCommandLine(module.spec, rest, surroundings.env);
  if (args.has("version")) return printVersion(surroundings);
  if (args.has("help")) {
    const { commandHelp } = await import("./help.ts");
    await writeAll(surroundings.stdout, commandHelp(module.spec, helpStyle(surroundings)));
    return EXIT.ok;
  }
  return module.run(new Context(args, surroundings), args);
}

async function printVersion(surroundings: Surroundings): Promise<number> {
  await writeAll(surroundings.stdout, `openshell ${VERSION}\n`);
  return EXIT.ok;
}

/** Commands of the official command line that this one does not have yet, by group: whoever types one has not mistyped. */
const NOT_BUILT: Readonly<Record<string, readonly string[]>> = {
  "": ["doctor", "forward", "profile", "rule", "service", "ssh-proxy", "term", "whoami", "workspace"],
  sandbox: ["download", "resume", "ssh-config", "suspend", "template", "upload"],
  provider: ["list-profiles", "profile", "refresh"],
  gateway: ["add", "info", "list", "login", "logout", "remove", "select", "upgrade-check"],
};

function notBuilt(command: string) {
  return usageError(`openshell ${command} is not built yet in this version`, "See openshell --help for what is there");
}

async function unknownCommand(word: string) {
  if (NOT_BUILT[""]?.includes(word)) return notBuilt(word);
  const { meantCommand } = await import("./suggest.ts");
  const meant = meantCommand(word);
  return usageError(
    `there is no command ${quote(word)}`,
    meant === undefined ? "See openshell --help" : `Did you mean openshell ${meant}?`,
  );
}

/** Where help is shown, since no command was named: an option that nothing takes was meant for something. */
function refuseUnknown(rest: readonly string[], next: string): void {
  const unknown = rest.find(
    (item) => !["-h", "--help", "-v", "--verbose", "--"].includes(item) && item.startsWith("-") && !isGlobal(item),
  );
  if (unknown !== undefined) throw usageError(`unknown option ${unknown}`, next);
}

function isGlobal(option: string): boolean {
  return /^(-g|--gateway|--gateway-endpoint|--gateway-insecure|--workspace|--color)(=|$)/.test(option);
}

function helpStyle(surroundings: Surroundings) {
  return styleFor(surroundings.stdout.isTTY === true, "auto", surroundings.env);
}

/** Somebody may have removed it meanwhile. */
function currentFolder(): string {
  try {
    return process.cwd();
  } catch {
    throw usageError("the current folder does not exist any more", "Change to one that exists: cd");
  }
}

function processSurroundings(): Surroundings {
  const { env } = process;
  return {
    env,
    get cwd() {
      return currentFolder();
    },
    uid: process.getuid?.() ?? 0,
    get home() {
      return homeFolder(env);
    },
    commandLine: () => process.getBuiltinModule("node:fs").readFileSync("/proc/self/cmdline"),
    get stdin() {
      return process.stdin;
    },
    get stdout() {
      return process.stdout;
    },
    get stderr() {
      return process.stderr;
    },
  };
}

import { type CommandSpec, type Flag, GLOBAL_FLAGS } from "./args.ts";
import { type CommandEntry, everything, type Group, SECTIONS } from "./commands/index.ts";
import type { Style } from "./output/style.ts";

const INDENT = "  ";

/** `openshell --help`. */
export function rootHelp(style: Style): string {
  const all = everything();
  const sections = SECTIONS.map(({ title, names }) => {
    const rows = names.map((name) => [name, all.find((item) => item.name === name)?.summary ?? ""] as const);
    return `${style.bold(title)}\n${columns(rows)}`;
  });
  return [
    "Runs programs without giving them your machine, your network or your credentials.\n",
    `${style.bold("USAGE")}\n${INDENT}openshell COMMAND [OPTIONS]\n`,
    ...sections,
    `${style.bold("FLAGS")}\n${flagColumns(GLOBAL_FLAGS)}`,
    `${style.bold("EXAMPLES")}\n${lines([
      "openshell run -- sh -c 'id; curl -sS https://example.com'",
      "openshell sandbox create --name dev --detach -- sleep infinity",
      "openshell sandbox exec dev -- ls",
      "openshell policy set dev --policy policy.yaml",
    ])}`,
    `${style.bold("LEARN MORE")}\n${lines(["openshell COMMAND --help says everything about a command."])}`,
  ].join("\n");
}

/** `openshell GROUP --help`. */
export function groupHelp(group: Group, style: Style): string {
  const visible = group.commands.filter((command) => command.hidden !== true);
  return [
    `${capital(group.summary)}.\n`,
    `${style.bold("USAGE")}\n${INDENT}openshell ${group.name} COMMAND [OPTIONS]\n`,
    `${style.bold("COMMANDS")}\n${columns(visible.map((command: CommandEntry) => [command.name, command.summary]))}`,
    ...(group.alias === undefined ? [] : [`${style.bold("ALIAS")}\n${INDENT}${group.alias}\n`]),
    `${style.bold("FLAGS")}\n${flagColumns(GLOBAL_FLAGS)}`,
  ].join("\n");
}

/** `openshell COMMAND --help`. */
export function commandHelp(spec: CommandSpec, style: Style): string {
  return [
    `${capital(spec.summary)}.\n`,
    `${style.bold("USAGE")}\n${INDENT}${usageLine(spec)}\n`,
    ...(spec.about === undefined ? [] : [`${spec.about.join("\n")}\n`]),
    ...(spec.flags.length === 0 ? [] : [`${style.bold("OPTIONS")}\n${flagColumns(spec.flags)}`]),
    `${style.bold("GLOBAL FLAGS")}\n${flagColumns(GLOBAL_FLAGS)}`,
    ...(spec.examples === undefined ? [] : [`${style.bold("EXAMPLES")}\n${lines(spec.examples)}`]),
  ].join("\n");
}

export function usageLine(spec: CommandSpec): string {
  const positionals = (spec.positionals ?? []).map(({ name, required, many }) => {
    const text = many === true ? `${name}…` : name;
    return required === true ? text : `[${text}]`;
  });
  const options = spec.flags.length === 0 ? [] : ["[OPTIONS]"];
  const trailing =
    spec.trailing === undefined ? [] : [spec.trailingRequired === true ? "-- COMMAND…" : "[-- COMMAND…]"];
  return ["openshell", ...spec.path, ...positionals, ...options, ...trailing].join(" ");
}

export function flagName(flag: Flag): string {
  const value =
    flag.value === undefined ? "" : flag.value.startsWith("[") ? `[=${flag.value.slice(1)}` : ` ${flag.value}`;
  return `${flag.short === undefined ? "    " : `-${flag.short}, `}--${flag.long}${value}`;
}

function flagColumns(flags: readonly Flag[]): string {
  const visible = flags.filter((flag) => flag.hidden !== true);
  return columns(
    visible.map((flag) => [flagName(flag), flag.help + (flag.env === undefined ? "" : ` [$${flag.env}]`)]),
  );
}

function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([name]) => name.length));
  return lines(rows.map(([name, text]) => `${name.padEnd(width)}  ${text}`));
}

function lines(items: readonly string[]): string {
  return items.map((item) => `${INDENT}${item}\n`).join("");
}

function capital(text: string): string {
  return text[0]!.toUpperCase() + text.slice(1);
}

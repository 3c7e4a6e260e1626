import type { CommandSpec, Flag } from "./args.ts";
import { GLOBAL_FLAGS } from "./args.ts";
import { everything } from "./commands/index.ts";
import { flagName, usageLine } from "./help.ts";

/** docs/cli.md: every command with its options, from the declarations that parsing uses. */
export async function commandReference(): Promise<string> {
  const parts = [
    "# Command reference",
    "",
    "Made from the declarations of the commands: `node tools/generate-cli-reference.ts`. Everything here is also in `openshell COMMAND --help`.",
    "",
    "## Every command",
    "",
    table(GLOBAL_FLAGS),
  ];
  for (const item of everything()) {
    for (const entry of "commands" in item ? item.commands : [item]) {
      if (entry.hidden !== true) parts.push(section((await entry.load()).spec));
    }
  }
  return `${parts.join("\n").trimEnd()}\n`;
}

function section(spec: CommandSpec): string {
  const lines = [`## ${spec.path.join(" ")}`, "", `${spec.summary[0]!.toUpperCase()}${spec.summary.slice(1)}.`];
  for (const text of spec.about ?? []) lines.push(text);
  lines.push("", "```", usageLine(spec), "```", "");
  const visible = spec.flags.filter((flag) => flag.hidden !== true);
  if (visible.length > 0) lines.push(table(visible));
  if (spec.examples !== undefined) lines.push("```sh", ...spec.examples, "```", "");
  return lines.join("\n");
}

function table(flags: readonly Flag[]): string {
  const cellText = (text: string): string => text.replaceAll("|", "\\|");
  const rows = flags.map((flag) => {
    const excludes =
      flag.conflicts === undefined ? "" : `; excludes ${flag.conflicts.map((name) => `--${name}`).join(", ")}`;
    const variable = flag.env === undefined ? "" : ` (\`$${flag.env}\`)`;
    const more = flag.many === true ? "; may be repeated" : "";
    return `| \`${flagName(flag).trim()}\` | ${cellText(flag.help + variable + more + excludes)} |`;
  });
  return ["| Option | Meaning |", "|---|---|", ...rows, ""].join("\n");
}

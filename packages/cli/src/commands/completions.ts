import { type Args, type CommandSpec, GLOBAL_FLAGS, requirePositional } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, usageError } from "../errors.ts";
import { everything } from "./index.ts";

export const spec: CommandSpec = {
  path: ["completions"],
  summary: "print completions for a shell",
  positionals: [{ name: "SHELL", required: true }],
  flags: [],
  about: ["SHELL is bash, zsh or fish."],
  examples: ["openshell completions bash > ~/.local/share/bash-completion/completions/openshell"],
};

/** Words after each command path: `"sandbox"` → its commands, `"sandbox create"` → its options. */
export async function completionWords(): Promise<ReadonlyMap<string, readonly string[]>> {
  const words = new Map<string, readonly string[]>();
  const global = GLOBAL_FLAGS.map((flag) => `--${flag.long}`);
  words.set("", [...everything().map((item) => item.name), ...global]);
  for (const item of everything()) {
    if ("commands" in item)
      words.set(
        item.name,
        item.commands.map((command) => command.name),
      );
    const entries = "commands" in item ? item.commands : [item];
    for (const entry of entries) {
      const module = await entry.load();
      const own = module.spec.flags.filter((flag) => flag.hidden !== true).map((flag) => `--${flag.long}`);
      words.set(module.spec.path.join(" "), [...own, ...global]);
    }
  }
  return words;
}

export async function run(context: Context, args: Args): Promise<number> {
  const shell = requirePositional(args, 0, "the shell", spec);
  const words = await completionWords();
  const cases = [...words].map(
    ([path, list]) => `    ${JSON.stringify(path)}) words=${JSON.stringify(list.join(" "))} ;;`,
  );
  if (shell === "bash" || shell === "zsh") {
    await context.print(
      `${shell === "zsh" ? "#compdef openshell\nautoload -U +X bashcompinit && bashcompinit\n" : ""}${bash(cases)}`,
    );
  } else if (shell === "fish") {
    await context.print(fish(words));
  } else {
    throw usageError(`${JSON.stringify(shell)} is no shell with completions`, "Use bash, zsh or fish");
  }
  return EXIT.ok;
}

function bash(cases: readonly string[]): string {
  return `_openshell() {
  local current="\${COMP_WORDS[COMP_CWORD]}" path="" words="" word index
  for ((index = 1; index < COMP_CWORD; index++)); do
    word="\${COMP_WORDS[index]}"
    [[ $word == -- ]] && { COMPREPLY=(); return; }
    [[ $word == -* ]] || path="\${path:+$path }$word"
  done
  while :; do
    words=""
    case "$path" in
${cases.join("\n")}
    esac
    [[ -n $words || -z $path ]] && break
    [[ $path == *" "* ]] && path="\${path% *}" || path=""
  done
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _openshell openshell
`;
}

function fish(words: ReadonlyMap<string, readonly string[]>): string {
  const lines = ["complete -c openshell -f"];
  for (const [path, list] of words) {
    const parts = path.split(" ").filter((part) => part !== "");
    const condition =
      parts.length === 0
        ? "__fish_use_subcommand"
        : parts.map((part) => `__fish_seen_subcommand_from ${part}`).join("; and ");
    for (const word of list) {
      lines.push(
        word.startsWith("--")
          ? `complete -c openshell -n '${condition}' -l ${word.slice(2)}`
          : `complete -c openshell -n '${condition}' -a ${word}`,
      );
    }
  }
  return `${lines.join("\n")}\n`;
}

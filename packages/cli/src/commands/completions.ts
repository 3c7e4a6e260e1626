import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { SHELLS } from "../complete/complete.ts";
import type { Context } from "../context.ts";
import { EXIT, quote, usageError } from "../errors.ts";

export const spec: CommandSpec = {
  path: ["completions"],
  summary: "print completions for a shell",
  positionals: [{ name: "SHELL", choices: SHELLS, required: true }],
  flags: [],
  about: [
    "SHELL is bash, zsh or fish. Commands and options are completed, and names that exist: sandboxes, providers, workspaces, gateways,",
    "revisions and rules of policies. No gateway is started for that.",
  ],
  examples: [
    "source <(openshell completions bash)   # in ~/.bashrc",
    "openshell completions zsh > ~/.zfunc/_openshell   # a folder of $fpath",
    "openshell completions fish > ~/.config/fish/completions/openshell.fish",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const shell = requirePositional(args, 0, "the shell", spec);
  const script = SCRIPTS[shell as keyof typeof SCRIPTS] as string | undefined;
  if (script === undefined || !Object.hasOwn(SCRIPTS, shell))
    throw usageError(`${quote(shell)} is no shell with completions`, "Use bash, zsh or fish");
  await context.print(script);
  return EXIT.ok;
}

/** Each asks `openshell __complete` with the words up to the cursor, and takes no word of the answer for anything but text. */
const SCRIPTS: Readonly<Record<(typeof SHELLS)[number], string>> = {
  bash: `_openshell() {
  local line program="\${COMP_WORDS[0]/#\\~/$HOME}" current="\${COMP_WORDS[COMP_CWORD]}"
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == files ]]; then
      compopt -o default 2>/dev/null
    else
      COMPREPLY+=("$line")
    fi
  done < <("$program" __complete bash "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null </dev/null)
}
complete -F _openshell openshell
`,
  zsh: `#compdef openshell
_openshell() {
  local line
  local -a words_found shown
  for line in "\${(@f)$("\${(Q)words[1]}" __complete zsh "\${(@Q)words[2,CURRENT]}" 2>/dev/null </dev/null)}"; do
    if [[ $line == files ]]; then
      _files
      return
    elif [[ -n $line ]]; then
      words_found+=("\${line%%$'\\t'*}")
      shown+=("\${line/$'\\t'/  -- }")
    fi
  done
  compadd -l -d shown -a words_found
}
if [[ \${funcstack[1]} == _openshell ]]; then
  _openshell "$@"
else
  compdef _openshell openshell
fi
`,
  fish: `function __openshell_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l found ($words[1] __complete fish $words[2..] "$current" 2>/dev/null </dev/null)
  if test "$found" = files
    __fish_complete_path "$current"
  else
    printf '%s\\n' $found
  end
end
complete -c openshell -f -a '(__openshell_complete)'
`,
};

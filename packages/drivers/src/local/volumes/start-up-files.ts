/**
 * What the owner's shell, editor, git or build tool runs from a folder without being asked each time. In a writable volume
 * these are read-only inside unless it is `rw-all`, since the agent could plant code there that runs outside; whatever
 * of them comes or changes all the same is reported (`planted.ts`). The one list of both.
 *
 * Not here, because they are what an agent is there to write and its owner is there to review: sources, Makefiles, scripts of
 * package.json, CI pipelines, prompts (AGENTS.md).
 */
export interface StartUpFile {
  /** Name in any folder of the volume; with `/`, a path below any folder. */
  readonly name: string;
  /** Who runs it, and when. */
  readonly reason: string;
  /**
   * Where it is missing at the top of a volume that is a repository or a home, an empty folder is made under its name for the
   * sandbox's life, and covered. For folders alone, which git does not show, whose tools take an empty one for none, and
   * that take effect the moment they appear; each one more is in the way of somebody's `git clean`.
   */
  readonly hold?: "repository" | "home";
  /** Means something in a home alone, so it is looked for at the top of volumes and nowhere else. */
  readonly top?: true;
}

const shell = "the owner's shell runs it at login or start, where the folder is a home";

export const START_UP_FILES: readonly StartUpFile[] = [
  { name: ".bash_aliases", reason: shell, top: true },
  { name: ".bash_login", reason: shell, top: true },
  { name: ".bash_logout", reason: shell, top: true },
  { name: ".bash_profile", reason: shell, top: true },
  { name: ".bashrc", reason: shell, top: true },
  { name: ".cshrc", reason: shell, top: true },
  { name: ".kshrc", reason: shell, top: true },
  { name: ".profile", reason: shell, top: true },
  { name: ".tcshrc", reason: shell, top: true },
  { name: ".zlogin", reason: shell, top: true },
  { name: ".zlogout", reason: shell, top: true },
  { name: ".zprofile", reason: shell, top: true },
  { name: ".zshenv", reason: shell, top: true },
  { name: ".zshrc", reason: shell, top: true },
  { name: ".config/fish", reason: shell, top: true },
  { name: ".inputrc", reason: "readline binds keys to commands with it", top: true },
  { name: ".tmux.conf", reason: "tmux runs the commands in it at start", top: true },
  { name: ".screenrc", reason: "screen runs the commands in it at start", top: true },
  { name: ".xinitrc", reason: "the desktop session runs it", top: true },
  { name: ".xprofile", reason: "the desktop session runs it", top: true },
  { name: ".xsession", reason: "the desktop session runs it", top: true },
  { name: ".config/autostart", reason: "the desktop session runs what it names", top: true },
  { name: ".config/systemd", reason: "the user's service manager runs what it names", top: true },
  {
    name: ".ssh",
    reason: "ssh runs ProxyCommand of its configuration; sshd admits whoever its keys name",
    top: true,
    hold: "home",
  },
  { name: ".gnupg", reason: "gpg starts the programs that its configuration names", top: true },
  { name: ".envrc", reason: "direnv runs it when a shell enters the folder" },
  { name: ".mise.toml", reason: "mise takes tools, variables and hooks from it when a shell enters the folder" },
  { name: "mise.toml", reason: "mise takes tools, variables and hooks from it when a shell enters the folder" },
  { name: ".gitconfig", reason: "git reads it in a home, or where a repository includes it; it names programs" },
  { name: ".gitmodules", reason: "git fetches from the addresses in it on `git submodule update`" },
  { name: ".githooks", reason: "a common core.hooksPath: git runs what is in it" },
  { name: ".husky", reason: "husky's core.hooksPath: git runs what is in it" },
  { name: ".pre-commit-config.yaml", reason: "the pre-commit hook runs the commands in it" },
  { name: "lefthook.yml", reason: "lefthook's git hooks run the commands in it" },
  { name: ".lefthook.yml", reason: "lefthook's git hooks run the commands in it" },
  {
    name: ".vscode",
    reason: "an editor takes tasks, paths of programs and settings from it while it is open",
    hold: "repository",
  },
  { name: ".idea", reason: "an editor takes run configurations and paths of programs from it" },
  { name: ".devcontainer", reason: "an editor builds and starts what it says when the folder is opened" },
  { name: ".zed", reason: "an editor takes tasks and paths of programs from it while it is open" },
  { name: ".nvim.lua", reason: "an editor runs it when it starts in the folder" },
  { name: ".nvimrc", reason: "an editor runs it when it starts in the folder" },
  { name: ".exrc", reason: "an editor runs it when it starts in the folder" },
  { name: ".vimrc", reason: "an editor runs it when it starts in the folder" },
  { name: ".lvimrc", reason: "an editor runs it when it starts in the folder" },
  { name: ".emacs", reason: "an editor runs it at start, in a home", top: true },
  { name: ".emacs.d", reason: "an editor runs it at start, in a home", top: true },
  { name: ".dir-locals.el", reason: "an editor evaluates it when a file of the folder is opened" },
  { name: ".gdbinit", reason: "a debugger runs it when it starts in the folder" },
  { name: ".lldbinit", reason: "a debugger runs it when it starts in the folder" },
  { name: ".hg/hgrc", reason: "mercurial runs the hooks and extensions that it names" },
  { name: ".jj/repo/config.toml", reason: "jujutsu runs the programs that it names" },
  { name: ".npmrc", reason: "npm takes its registry and the shell of its scripts from it" },
  { name: ".yarnrc", reason: "yarn runs the program that yarn-path names, at every command" },
  { name: ".yarnrc.yml", reason: "yarn runs the program that yarnPath names, at every command" },
  { name: ".pnpmfile.cjs", reason: "pnpm runs it at every install" },
  { name: ".cargo", reason: "cargo and editors run the wrappers and linkers that its configuration names" },
  { name: ".mvn", reason: "maven loads the extensions that it names" },
  { name: ".mcp.json", reason: "coding agents outside start the servers that it names" },
  { name: ".claude/settings.json", reason: "coding agents outside run the hooks in it" },
  { name: ".claude/settings.local.json", reason: "coding agents outside run the hooks in it" },
  { name: ".cursor/mcp.json", reason: "coding agents outside start the servers that it names" },
  { name: ".codex/config.toml", reason: "coding agents outside start the servers that it names" },
  { name: ".gemini/settings.json", reason: "coding agents outside start the servers that it names" },
  { name: "opencode.json", reason: "coding agents outside start the servers that it names" },
];

/** Whether a folder with these entries is a git folder: git takes one for a repository wherever it finds it, also without `.git`. */
export function isGitFolder(kindOf: (name: string) => string | undefined): boolean {
  return kindOf("HEAD") === "file" && kindOf("objects") === "directory" && kindOf("refs") === "directory";
}

/** What of a git folder decides which programs git runs. */
export const GIT_FILES: readonly { readonly name: string; readonly reason: string }[] = [
  { name: "hooks", reason: "git runs the programs in it" },
  { name: "config", reason: "git runs the programs that it names, even for `git status`" },
  { name: "config.worktree", reason: "git reads it as further configuration where extensions.worktreeConfig is set" },
  { name: "commondir", reason: "git takes configuration and hooks from the folder that it names" },
  { name: "worktrees", reason: "each folder in it may name other configuration for a linked worktree" },
];

/** Folders below `.git/modules` that are looked into for those of submodules, whose names may have slashes. */
export const MODULE_DEPTH = 4;

/** Folders that hold what tools fetched or built: large, ignored by git, and nothing in them starts by itself. */
export const SKIPPED_FOLDERS: ReadonlySet<string> = new Set([
  "node_modules",
  "target",
  "__pycache__",
  ".venv",
  "venv",
  ".tox",
  ".cache",
  ".gradle",
]);

const SINGLE = new Map(START_UP_FILES.filter(({ name }) => !name.includes("/")).map((file) => [file.name, file]));
const NESTED = START_UP_FILES.filter(({ name }) => name.includes("/"));
/** First parts of the names with a `/`. */
const PREFIXES: ReadonlySet<string> = new Set(NESTED.map(({ name }) => name.slice(0, name.indexOf("/"))));

/** The entry for one name in a folder; `top`: the folder is the volume itself. */
export function startUpFile(name: string, top: boolean): StartUpFile | undefined {
  const found = SINGLE.get(name);
  return found?.top === true && !top ? undefined : found;
}

/** Names below a folder's entry `name` that are on the list by their path: `settings.json` for `.claude`. */
export function startUpFilesBelow(name: string, top: boolean): readonly StartUpFile[] {
  if (!PREFIXES.has(name)) return [];
  return NESTED.filter((file) => file.name.startsWith(`${name}/`) && (top || file.top !== true));
}

/**
 * The home folder: $HOME, or what the account says where that is unset or relative (a relative one would mean another folder
 * for every command), or `/` for an id without an account.
 */
export function homeFolder(env: Readonly<Record<string, string | undefined>>): string {
  const home = env["HOME"];
  if (home?.startsWith("/")) return home;
  try {
    return process.getBuiltinModule("node:os").userInfo().homedir;
  } catch {
    return "/";
  }
}

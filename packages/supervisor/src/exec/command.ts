/** One word for a POSIX shell. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/**
 * argv for a requested command: through a login shell, so that the agent's profile applies, or
 * as it is with `noLoginShell`.
 */
export function commandLine(command: readonly string[], noLoginShell: boolean, shell: string): readonly string[] {
  if (noLoginShell) return command;
  return [shell, "-lc", command.map(quote).join(" ")];
}

/** Status as a shell reports it: the code, or 128 + signal. */
export function shellCode(
  status: { readonly kind: "exited"; readonly code: number } | { readonly kind: "signaled"; readonly signal: number },
): number {
  return status.kind === "exited" ? status.code : 128 + status.signal;
}

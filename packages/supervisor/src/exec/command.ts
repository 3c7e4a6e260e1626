/** One word for a POSIX shell. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** Bytes of one argument that the kernel takes, with its NUL (MAX_ARG_STRLEN, execve(2)). */
const MAX_ARGUMENT_BYTES = 131_072;

/**
 * argv for a requested command: through a login shell, so that the agent's profile applies, or
 * as it is with `noLoginShell`.
 */
export function commandLine(command: readonly string[], noLoginShell: boolean, shell: string): readonly string[] {
  if (noLoginShell) return command;
  const script = command.map(quote).join(" ");
  if (Buffer.byteLength(script) < MAX_ARGUMENT_BYTES) return [shell, "-lc", script];
  // Too long for one argument, and each word fits: the shell gets them apart.
  return [shell, "-lc", '"$@"', shell, ...command];
}

/** Status as a shell reports it: the code, or 128 + signal. */
export function shellCode(
  status: { readonly kind: "exited"; readonly code: number } | { readonly kind: "signaled"; readonly signal: number },
): number {
  return status.kind === "exited" ? status.code : 128 + status.signal;
}

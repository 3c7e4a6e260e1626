/** Time for `stty`, which only makes one ioctl. */
const STTY_LIMIT_MS = 2_000;

/**
 * Passes keys on as they are typed and output as it comes. Node's raw mode leaves the terminal turning every LF into
 * CR LF; the terminal inside has done that already where it is wanted, and where it is not (full-screen programs move
 * the cursor down with LF) the screen would be wrong. Node has no way to switch that off, stty(1) has.
 *
 * `setRawMode(false)` undoes both: it restores what was there before.
 */
export function makeRaw(stdin: NodeJS.ReadStream): void {
  stdin.setRawMode(true);
  const { spawnSync } = process.getBuiltinModule("node:child_process");
  const { fd } = stdin as { readonly fd?: number };
  spawnSync("stty", ["-opost"], { stdio: [fd ?? "ignore", "ignore", "ignore"], timeout: STTY_LIMIT_MS });
}

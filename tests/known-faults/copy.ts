import { spawnSync } from "node:child_process";
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Edit } from "./fault.ts";

const repository = join(import.meta.dirname, "../..");

/** Links what is installed, but the packages of this repository to those of the copy. */
function linkModules(from: string, to: string): void {
  mkdirSync(to);
  for (const name of readdirSync(from)) {
    const [source, target] = [join(from, name), join(to, name)];
    // Build tools write in their cache.
    if (name === ".vite" || name === ".vite-temp") continue;
    if (name === "@openshell") linkModules(source, target);
    else symlinkSync(lstatSync(source).isSymbolicLink() ? readlinkSync(source) : source, target);
  }
}

/** A private copy of the checkout, as it is, in a temporary folder. */
export class Copy implements Disposable {
  readonly folder: string;

  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "openshell-known-faults-"));
    // A user's pass has to read it.
    chmodSync(this.folder, 0o755);
    const script =
      'cd "$0" && git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$1"';
    const { status, stderr } = spawnSync("sh", ["-c", script, repository, this.folder], { encoding: "utf8" });
    if (status !== 0) throw new Error(`the checkout could not be copied: ${stderr}`);
    linkModules(join(repository, "node_modules"), join(this.folder, "node_modules"));
    linkModules(join(repository, "tools/node/node_modules"), join(this.folder, "tools/node/node_modules"));
  }

  /** Calls `action` while the edits are made, and takes them back. */
  async without<T>(edits: readonly Edit[], action: () => Promise<T>): Promise<T> {
    const before = new Map(edits.map(({ file }) => [file, readFileSync(join(this.folder, file), "utf8")]));
    const now = new Map(before);
    for (const { file, from, to } of edits)
      now.set(
        file,
        now.get(file)!.replace(from, () => to),
      );
    for (const [file, text] of now) writeFileSync(join(this.folder, file), text);
    try {
      return await action();
    } finally {
      for (const [file, text] of before) writeFileSync(join(this.folder, file), text);
    }
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

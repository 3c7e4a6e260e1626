import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";

const repository = resolve(import.meta.dirname, "../..");

/** What goes into a build, beside the packages that npm installs. */
const SOURCES = ["package.json", "tools/build.ts", "tools/bundle.ts", "packages"];

/** A build of the same sources under another version: what an upgrade, or a downgrade, puts in place. */
export class OtherBuild implements Disposable {
  readonly folder: string;
  /** Runs its command line. */
  readonly command: readonly string[];

  /** Makes it in a new folder below `parent`, with the repository's own bundler. */
  constructor(parent: string, version: string) {
    const sources = join(parent, `sources-${version}`);
    mkdirSync(join(sources, "tools"), { recursive: true });
    for (const path of SOURCES) {
      const filter = (source: string) => basename(source) !== "node_modules";
      cpSync(join(repository, path), join(sources, path), { recursive: true, filter });
    }
    symlinkSync(join(repository, "node_modules"), join(sources, "node_modules"));
    for (const name of readdirSync(join(sources, "packages"))) {
      const file = join(sources, "packages", name, "package.json");
      const manifest = JSON.parse(readFileSync(file, "utf8")) as { version?: string };
      writeFileSync(file, JSON.stringify({ ...manifest, version }));
    }
    this.folder = join(parent, `build-${version}`);
    execFileSync(process.execPath, [join(sources, "tools/build.ts"), this.folder], { stdio: "pipe" });
    const dist = join(repository, "dist");
    const [current] = readFileSync(join(dist, "stamp"), "utf8").split(" ");
    cpSync(join(dist, current!, "native"), join(this.folder, "native"), { recursive: true });
    rmSync(sources, { recursive: true });
    this.command = [process.execPath, join(this.folder, "cli.mjs")];
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

import { spawnSync } from "node:child_process";
import { chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** Short, because the paths of unix sockets below it must stay under 100 bytes; not TMPDIR, for the same reason. */
const PARENT = "/tmp";

export interface GatewayConfigOptions {
  /** `additional_ca_bundle`. */
  readonly caFile?: string;
  /** `resolvers`, each `IP:port`. */
  readonly resolvers?: readonly string[];
  /** Further keys of `[openshell.supervisor.network]`, TOML. */
  readonly network?: string;
  /** Further tables, TOML. */
  readonly extra?: string;
}

/** An empty home with XDG folders of its own: a machine where OpenShell was never used. */
export class TestHome implements Disposable {
  readonly folder: string;
  /** HOME and the XDG variables. */
  readonly env: Readonly<Record<string, string>>;
  readonly config: string;
  readonly state: string;
  readonly runtime: string;

  private constructor(folder: string) {
    this.folder = folder;
    this.config = join(folder, "config");
    this.state = join(folder, "state");
    this.runtime = join(folder, "run");
    this.env = {
      HOME: join(folder, "home"),
      XDG_CONFIG_HOME: this.config,
      XDG_STATE_HOME: this.state,
      XDG_DATA_HOME: join(folder, "data"),
      XDG_CACHE_HOME: join(folder, "cache"),
      XDG_RUNTIME_DIR: this.runtime,
    };
  }

  /** Makes the folders, 0700; `owner` for commands that run under another uid (root mode). */
  static create(owner?: { readonly uid: number; readonly gid: number }): TestHome {
    const home = new TestHome(mkdtempSync(join(PARENT, "os-")));
    for (const folder of Object.values(home.env)) mkdirSync(folder, { mode: 0o700 });
    if (owner) for (const folder of [home.folder, ...Object.values(home.env)]) chownSync(folder, owner.uid, owner.gid);
    return home;
  }

  /** Where a working copy, a volume or a policy of the test may lie; the home of the user. */
  path(...parts: string[]): string {
    return join(this.env["HOME"]!, ...parts);
  }

  /** Writes a file below the home and returns its path. */
  write(name: string, text: string, mode = 0o600): string {
    const path = this.path(name);
    mkdirSync(join(path, ".."), { recursive: true });
    writeFileSync(path, text, { mode });
    return path;
  }

  /** Writes gateway.toml where the gateway looks for it. */
  writeGatewayConfig(options: GatewayConfigOptions): string {
    const network = [
      ...(options.caFile === undefined ? [] : [`additional_ca_bundle = ${JSON.stringify(options.caFile)}`]),
      ...(options.resolvers === undefined ? [] : [`resolvers = ${JSON.stringify(options.resolvers)}`]),
      ...(options.network === undefined ? [] : [options.network]),
    ];
    const lines = [
      "[openshell]",
      "version = 2",
      "",
      "[openshell.supervisor.network]",
      ...network,
      "",
      options.extra ?? "",
    ];
    const folder = join(this.config, "openshell");
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const path = join(folder, "gateway.toml");
    writeFileSync(path, `${lines.join("\n")}\n`, { mode: 0o600 });
    return path;
  }

  /** Removes everything; refuses while something is mounted below, which removal would reach into. */
  [Symbol.dispose](): void {
    const mounted = readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .map((line) => line.split(" ")[4] ?? "")
      .filter((point) => point === this.folder || point.startsWith(`${this.folder}/`));
    if (mounted.length > 0) throw new Error(`left mounted in a test's home: ${mounted.join(", ")}`);
    try {
      rmSync(this.folder, { recursive: true, force: true });
    } catch {
      // Folders without permissions, such as overlayfs's work folder, have to be opened first.
      spawnSync("chmod", ["-R", "u+rwX", this.folder]);
      rmSync(this.folder, { recursive: true, force: true });
    }
  }
}

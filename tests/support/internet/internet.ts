import type { ChildProcess } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { killGroup, type RunOptions, type RunResult, type SpawnOptions } from "../command.ts";
import { requireTestNetwork } from "../enter.ts";
import { TestOpenShell } from "../openshell.ts";
import { hostAddresses, isIpv6, NAME_SERVER } from "./addresses.ts";
import { TestAuthority } from "./ca.ts";
import { type CommandRunner, commandsIn, type PlaceOptions } from "./commands-in.ts";
import { type HostOptions, TestHost } from "./host.ts";
import { TestNameServer } from "./name-server.ts";
import { dropClientSide, setUpClientSide } from "./namespace.ts";

/**
 * An internet of a test's own: `await using net = await TestInternet.start()`. This process, the gateway, the CLI and
 * other clients are in one network namespace; each host is in another. One at a time in a process.
 */
export class TestInternet implements AsyncDisposable {
  /** The name server; `dns.resolvers` is for the gateway's configuration. */
  readonly dns: TestNameServer;
  readonly authority: TestAuthority;
  /** The root certificate, PEM: for `additional_ca_bundle`, `SSL_CERT_FILE`, `curl --cacert`. */
  readonly caFile: string;
  readonly #folder: string;
  readonly #hosts: TestHost[] = [];
  readonly #children = new Set<ChildProcess>();
  readonly #commands: CommandRunner;
  #nextHost = 0;
  #openshell: TestOpenShell | undefined;

  private constructor(folder: string, authority: TestAuthority, dns: TestNameServer) {
    this.#folder = folder;
    this.authority = authority;
    this.dns = dns;
    this.caFile = join(folder, "ca.pem");
    this.#commands = commandsIn(folder);
  }

  /** Throws unless the process is inside a test network (enter.ts) that nothing else uses. */
  static async start(): Promise<TestInternet> {
    requireTestNetwork();
    if (current) throw new Error("a test internet is already running in this process");
    refuseOtherLinks();
    current = true;
    const folder = mkdtempSync(join(tmpdir(), "openshell-net-"));
    try {
      await setUpClientSide();
      const [authority, dns] = await Promise.all([TestAuthority.create(), TestNameServer.create()]);
      const net = new TestInternet(folder, authority, dns);
      writeFileSync(net.caFile, authority.pem, { mode: 0o644 });
      writeFileSync(join(folder, "nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n");
      writeFileSync(join(folder, "resolv.conf"), `nameserver ${NAME_SERVER.ipv4}\nnameserver ${NAME_SERVER.ipv6}\n`);
      // They are read by clients under other ids.
      chmodSync(folder, 0o755);
      return net;
    } catch (error) {
      current = false;
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Adds a host under a name, and the name to DNS. */
  async host(name: string, options: HostOptions = {}): Promise<TestHost> {
    const index = this.#nextHost++;
    const { ipv4, ipv6 } = hostAddresses(index);
    const addresses = options.addresses ?? [ipv4, ipv6];
    const host = await TestHost.create(name, addresses, `os${index}`, this.authority, this.#folder, options);
    this.#hosts.push(host);
    if (options.register !== false) {
      const single = addresses.filter((address) => !address.includes("/"));
      const records = { A: single.filter((one) => !isIpv6(one)), AAAA: single.filter(isIpv6) };
      for (const one of [name, ...(options.names ?? [])]) this.dns.set(one, records);
    }
    return host;
  }

  /** Runs a command beside the gateway, as the product runs in this mode, to its end. */
  run(argv: readonly string[], options?: RunOptions & PlaceOptions): Promise<RunResult> {
    return this.#commands.run(argv, options);
  }

  /** Starts a command there; its process group is killed at the latest when the test internet ends. */
  spawn(argv: readonly string[], options?: SpawnOptions & PlaceOptions): ChildProcess {
    const child = this.#commands.spawn(argv, options);
    this.#children.add(child);
    child.once("exit", () => this.#children.delete(child));
    return child;
  }

  /**
   * Runs `openshell ARGS…` as a new user of this internet; its gateway lives until the internet ends. Tests that need
   * other settings or a second user make their own `TestOpenShell`.
   */
  openshell(args: readonly string[], options?: RunOptions): Promise<RunResult> {
    return this.user.run(args, options);
  }

  /** Who runs `openshell` here. */
  get user(): TestOpenShell {
    this.#openshell ??= TestOpenShell.create(this);
    return this.#openshell;
  }

  /** The command line that `run` would use, for callers that spawn by themselves (a PTY, a benchmark). */
  command(argv: readonly string[], options?: SpawnOptions & PlaceOptions): readonly string[] {
    return this.#commands.command(argv, options);
  }

  /** A CA bundle of the machine's roots and this internet's, as a file: what an ordinary client would be given. */
  bundleFile(): string {
    const path = join(this.#folder, "bundle.pem");
    let system = "";
    try {
      system = readFileSync("/etc/ssl/certs/ca-certificates.crt", "utf8");
    } catch {
      // A machine without ca-certificates.
    }
    writeFileSync(path, `${system}\n${this.authority.pem}`, { mode: 0o644 });
    return path;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const problems: unknown[] = [];
    const attempt = (step: () => unknown) =>
      Promise.resolve()
        .then(step)
        .catch((error) => problems.push(error));
    await attempt(() => this.#openshell?.[Symbol.asyncDispose]());
    for (const child of this.#children) {
      const gone = new Promise((done) => child.once("exit", done));
      if (killGroup(child)) await gone;
    }
    await Promise.all([...this.#hosts, this.dns].map((host) => attempt(() => host[Symbol.asyncDispose]())));
    await attempt(dropClientSide);
    rmSync(this.#folder, { recursive: true, force: true });
    current = false;
    if (problems.length === 1) throw problems[0];
    if (problems.length > 1) throw new AggregateError(problems, "the test internet did not end cleanly");
  }
}

/** Links that Linux adds to every namespace once the module is loaded; they are down and lead nowhere. */
const FALLBACK_LINKS = new Set(["lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0"]);

/** A network with any other link is not the one that enter.ts made, or a test before this one left something. */
function refuseOtherLinks(): void {
  const links = readFileSync("/proc/self/net/dev", "utf8")
    .split("\n")
    .slice(2)
    .map((line) => line.split(":")[0]!.trim())
    .filter((name) => name !== "" && !FALLBACK_LINKS.has(name));
  if (links.length > 0) throw new Error(`the test network has other links: ${links.join(", ")}`);
}

/** The addresses are fixed, so there can be one. */
let current = false;

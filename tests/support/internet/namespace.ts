import { type ChildProcess, spawn } from "node:child_process";
import type dgram from "node:dgram";
import { readFileSync, writeFileSync } from "node:fs";
import type net from "node:net";
import { join } from "node:path";
import { runOk } from "../command.ts";
import { CLIENT, HOST_LINK_LOCAL, isIpv6, ROUTER_LINK_LOCAL, withPrefix } from "./addresses.ts";
import type { OpenerReply, OpenerRequest } from "./opener.ts";

const OPENER = join(import.meta.dirname, "opener.ts");
const OPENER_TIMEOUT_MS = 20_000;
const LINK = "eth0";

/** `ip -batch` in the client namespace, where this process is. */
export async function ipBatch(commands: readonly string[]): Promise<void> {
  const argv = ["ip", "-batch", "-"];
  await runOk(argv, { stdin: `${commands.join("\n")}\n`, privileges: "harness", timeoutMs: 10_000 });
}

/** Addresses and forwarding of the client namespace; `dropClientSide` takes them away. */
export async function setUpClientSide(): Promise<void> {
  // On lo, so that they exist without any link; forwarding lets test hosts reach each other.
  await ipBatch([
    "link set lo up",
    `addr replace ${withPrefix(CLIENT.ipv4)} dev lo`,
    `addr replace ${withPrefix(CLIENT.ipv6)} dev lo nodad`,
  ]);
  for (const name of ["ipv4/ip_forward", "ipv6/conf/all/forwarding"]) writeFileSync(`/proc/sys/net/${name}`, "1");
}

export async function dropClientSide(): Promise<void> {
  await ipBatch([`addr del ${withPrefix(CLIENT.ipv4)} dev lo`, `addr del ${withPrefix(CLIENT.ipv6)} dev lo`]);
  for (const name of ["ipv4/ip_forward", "ipv6/conf/all/forwarding"]) writeFileSync(`/proc/sys/net/${name}`, "0");
}

/** What the kernel of a test host counted, whether or not anything listened. */
export interface PacketCounters {
  /** IPv4 packets that arrived, of any protocol. */
  readonly ipv4: number;
  /** IPv6 packets that arrived, without neighbour and multicast-listener discovery. */
  readonly ipv6: number;
  readonly udp: number;
  /** ICMP and ICMPv6 echo requests. */
  readonly echoRequests: number;
  /** TCP segments, those to closed ports included. */
  readonly tcp: number;
}

/** One test host's network namespace and its link to the client namespace. */
export class HostNamespace implements AsyncDisposable {
  readonly #opener: ChildProcess;
  readonly #waiting = new Map<number, (reply: OpenerReply, handle: unknown) => void>();
  readonly #link: string;
  #nextId = 1;

  private constructor(opener: ChildProcess, link: string) {
    this.#opener = opener;
    this.#link = link;
  }

  /** Makes namespace and link; `addresses` may contain prefixes, all of which the host then answers for. */
  static async create(link: string, addresses: readonly string[]): Promise<HostNamespace> {
    const { NODE_OPTIONS: _, ...env } = process.env;
    const opener = spawn("unshare", ["--net", "--", process.execPath, OPENER], {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
      env,
    });
    const namespace = new HostNamespace(opener, link);
    try {
      await namespace.#started();
      await namespace.#connect(addresses);
      return namespace;
    } catch (error) {
      await namespace[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** A process in this namespace. */
  get pid(): number {
    return this.#opener.pid!;
  }

  /** A listening TCP socket on every address of the host. */
  async openTcp(port: number): Promise<net.Server> {
    return (await this.#ask({ op: "tcp", port })) as net.Server;
  }

  /** A UDP socket on every address of the host. */
  async openUdp(port: number): Promise<dgram.Socket> {
    return (await this.#ask({ op: "udp", port })) as dgram.Socket;
  }

  /** Reads the counters now. */
  counters(): PacketCounters {
    const net = `/proc/${this.pid}/net`;
    const v4 = parseSnmp(readFileSync(`${net}/snmp`, "utf8"));
    const v6 = parseSnmp6(readFileSync(`${net}/snmp6`, "utf8"));
    const get = (table: Record<string, number>, name: string) => table[name] ?? 0;
    const discovery = [
      ...["RouterSolicits", "RouterAdvertisements", "NeighborSolicits", "NeighborAdvertisements"],
      ...["GroupMembQueries", "GroupMembResponses", "GroupMembReductions", "MLDv2Reports"],
    ];
    const noise = discovery.reduce((sum, name) => sum + get(v6, `Icmp6In${name}`), 0);
    return {
      ipv4: get(v4, "Ip.InReceives"),
      // Received would count multicast that no one here listens to.
      ipv6: get(v6, "Ip6InDelivers") + get(v6, "Ip6InNoRoutes") + get(v6, "Ip6InAddrErrors") - noise,
      udp: ["InDatagrams", "NoPorts", "InErrors"].reduce(
        (sum, name) => sum + get(v4, `Udp.${name}`) + get(v6, `Udp6${name}`),
        0,
      ),
      echoRequests: get(v4, "Icmp.InEchos") + get(v6, "Icmp6InEchos"),
      tcp: get(v4, "Tcp.InSegs"),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const gone = new Promise((done) => {
      if (this.#opener.exitCode !== null || this.#opener.signalCode !== null || this.#opener.pid === undefined) {
        done(undefined);
      } else this.#opener.once("exit", done);
    });
    // The link goes first: the kernel would take it away only some time after the namespace's last user.
    await ipBatch([`link del ${this.#link}`]).catch(() => {});
    this.#opener.kill("SIGKILL");
    await gone;
  }

  #started(): Promise<void> {
    const opener = this.#opener;
    return new Promise((done, fail) => {
      const timer = setTimeout(() => fail(new Error("a test host did not start in time")), OPENER_TIMEOUT_MS);
      this.#waiting.set(0, () => {
        clearTimeout(timer);
        done();
      });
      opener.on("error", fail);
      opener.on("exit", (code, signal) => {
        clearTimeout(timer);
        fail(new Error(`a test host's namespace ended (${code ?? signal})`));
        for (const waiter of this.#waiting.values()) waiter({ id: -1, error: "the test host ended" }, undefined);
        this.#waiting.clear();
      });
      opener.on("message", (reply: OpenerReply, handle) => {
        const waiter = this.#waiting.get(reply.id);
        this.#waiting.delete(reply.id);
        waiter?.(reply, handle);
      });
    });
  }

  async #connect(addresses: readonly string[]): Promise<void> {
    const link = this.#link;
    // The client side reaches each address over this link alone; there is no subnet, so a neighbouring address that
    // no host has is unreachable at once instead of after an ARP timeout.
    await ipBatch([
      `link add ${link} type veth peer name ${LINK} netns ${this.pid}`,
      // Without a generated link-local address there is no duplicate address detection to wait for.
      `link set ${link} addrgenmode none`,
      `link set ${link} up`,
      `addr add ${ROUTER_LINK_LOCAL}/64 dev ${link} nodad`,
      ...addresses.map((address) =>
        isIpv6(address)
          ? `route add ${withPrefix(address)} via ${HOST_LINK_LOCAL} dev ${link} src ${CLIENT.ipv6}`
          : `route add ${withPrefix(address)} dev ${link} src ${CLIENT.ipv4}`,
      ),
    ]);
    const single = addresses.filter((address) => !address.includes("/"));
    const prefixes = addresses.filter((address) => address.includes("/"));
    const batch = [
      "link set lo up",
      `link set ${LINK} addrgenmode none`,
      `link set ${LINK} up`,
      // By this address the client side reaches all IPv6 ones: those of a prefix answer no neighbour discovery.
      `addr add ${HOST_LINK_LOCAL}/64 dev ${LINK} nodad`,
      ...single.map((address) => `addr add ${withPrefix(address)} dev ${LINK}${isIpv6(address) ? " nodad" : ""}`),
      ...prefixes.map((prefix) => `route add local ${prefix} dev lo`),
      `route add ${withPrefix(CLIENT.ipv4)} dev ${LINK}`,
      `route add default via ${CLIENT.ipv4} dev ${LINK}`,
      `route add default via ${ROUTER_LINK_LOCAL} dev ${LINK}`,
    ];
    const sysctls = { "net.ipv6.conf.all.accept_dad": "0", [`net.ipv6.conf.${LINK}.accept_dad`]: "0" };
    await this.#ask({ op: "ip", batch: `${batch.join("\n")}\n`, sysctls });
  }

  #ask(request: Omit<Extract<OpenerRequest, { op: "ip" }>, "id"> | { op: "tcp" | "udp"; port: number }) {
    const id = this.#nextId++;
    return new Promise<unknown>((done, fail) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(id);
        fail(new Error(`a test host did not answer "${request.op}" in time`));
      }, OPENER_TIMEOUT_MS);
      this.#waiting.set(id, (reply, handle) => {
        clearTimeout(timer);
        if (reply.error === undefined) done(handle);
        else fail(new Error(`test host: ${reply.error}`));
      });
      this.#opener.send({ ...request, id } as OpenerRequest);
    });
  }
}

/** /proc/net/snmp: pairs of lines, names then values. */
function parseSnmp(text: string): Record<string, number> {
  const table: Record<string, number> = {};
  const rows = text.trim().split("\n");
  for (let i = 0; i + 1 < rows.length; i += 2) {
    const [protocol, ...names] = rows[i]!.split(" ");
    const values = rows[i + 1]!.split(" ").slice(1);
    names.forEach((name, at) => {
      table[`${protocol!.slice(0, -1)}.${name}`] = Number(values[at]);
    });
  }
  return table;
}

/** /proc/net/snmp6: a name and a value a line. */
function parseSnmp6(text: string): Record<string, number> {
  return Object.fromEntries(
    text
      .trim()
      .split("\n")
      .map((line) => line.split(/\s+/))
      .map(([name, value]) => [name!, Number(value)]),
  );
}

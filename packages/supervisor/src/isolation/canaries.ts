import type { IsolationLayer, Restrictions } from "@openshell/boundary";
import { ACCESS_FS } from "@openshell/boundary/local/compile/landlock.ts";

/** What an answer says of the layer: it held, the canary got through, or neither (the object to try it on does not exist). */
export type Verdict = "held" | "through" | "unclear";

/** One attempt at leaving, made from inside as the agent (native/init/probe.c has the words). */
export interface Canary {
  /** The layer that has to stop it. */
  readonly layer: string;
  readonly attempt: string;
  /** For people: what it would have meant. */
  readonly what: string;
  readonly judge: (answer: bigint) => Verdict;
}

export interface CanaryFacts {
  /** What launcher, init and driver claim. */
  readonly layers: readonly IsolationLayer[];
  readonly restrictions: Restrictions;
  readonly uid: number;
  readonly gid: number;
  readonly netnsCookie: bigint;
  /** Paths that exist on the host and are nobody's business inside. */
  readonly hostPaths: readonly string[];
  /** A socket of the host that nothing inside may reach. */
  readonly hostSocket: string;
  /** Listeners of this host for the duration of the test. */
  readonly witness: { readonly port: number; readonly abstractName: string };
  /** Listeners of the gateway, `IP:port`. */
  readonly gatewayAddresses: readonly string[];
  /** Ports on which something of the supervisor's listens inside. */
  readonly capturePorts: readonly number[];
}

const EPERM = 1n;
const EACCES = 13n;
const EAFNOSUPPORT = 97n;
const AF_INET = 2;
const AF_PACKET = 17;
const AF_VSOCK = 40;
const SOCK_STREAM = 1;
const SOCK_RAW = 3;
const IPPROTO_ICMP = 1;
const RLIMIT_NPROC = 6;
const SECCOMP_MODE_FILTER = 2n;
const DNS_PORT = 53;
/** Set aside for documentation (RFC 5737, RFC 3849): were a packet to leave, it would arrive nowhere. */
const NOWHERE = ["192.0.2.1", "2001:db8::1"];
const CANARY_FILE = ".openshell-canary";
const GATEWAY_ADDRESSES = 4;

const refused = (answer: bigint): Verdict => (answer < 0n ? "held" : "through");
const unseen = refused;
const is =
  (wanted: bigint) =>
  (answer: bigint): Verdict =>
    answer === wanted ? "held" : "through";
/** A count or value that could not be asked for says nothing. */
const reads =
  (wanted: bigint) =>
  (answer: bigint): Verdict =>
    answer < 0n ? "unclear" : answer === wanted ? "held" : "through";
/** Only this refusal comes from the layer; one of `through` would come from what lies behind it. */
const refusedWith =
  (errno: bigint, through: readonly bigint[]) =>
  (answer: bigint): Verdict =>
    answer === -errno ? "held" : through.includes(answer) ? "through" : "unclear";

/** Everything worth trying against the layers that claim to be in force. */
export function canaries(facts: CanaryFacts): readonly Canary[] {
  const claimed = new Set(facts.layers.filter(({ enforced }) => enforced).map(({ name }) => name));
  return [...outside(facts), ...network(facts), ...files(facts), ...privileges(facts)].filter(({ layer }) =>
    claimed.has(layer),
  );
}

function outside(facts: CanaryFacts): readonly Canary[] {
  const { layers, hostPaths, hostSocket, witness, netnsCookie } = facts;
  const rules = facts.restrictions.landlock?.rules ?? [];
  // What a policy or a volume puts there is the sandbox's own.
  const named = (folder: string): boolean => rules.some(({ path }) => path === folder || path.startsWith(`${folder}/`));
  const volumeInUsr = rules.some(({ path, access }) => path === "/usr" && (access & ACCESS_FS.makeReg) !== 0n);
  const systemIsReadOnly = layers.some(({ name, detail }) => name === "root_view" && detail.includes("read-only"));
  return [
    canary("namespaces", `abstract ${witness.abstractName}`, "an abstract socket of the host was reached", refused),
    canary("namespaces", "network", "the network namespace is another one", reads(netnsCookie)),
    canary("namespaces", "interfaces", "a network interface beside loopback is up", reads(0n)),
    ...hostPaths.map((path) => canary("root_view", `see ${path}`, "a folder of the gateway's is visible", unseen)),
    canary("root_view", `unix ${hostSocket}`, "a socket of the host was reached", refused),
    ...(named("/sys")
      ? []
      : [canary("root_view", "see /sys/kernel", "the kernel's settings in /sys are visible", unseen)]),
    canary("root_view", "read /proc/1/environ", "the environment of init could be read", refused),
    canary("root_view", "read /proc/kcore", "the kernel's memory could be read", refused),
    canary("root_view", "write /proc/sys/kernel/core_pattern", "a setting of the kernel could be written", refused),
    canary("root_view", "set-id /", "set-id programs count on the root's file system", reads(0n)),
    canary("root_view", "set-id /usr", "set-id programs count in /usr", reads(0n)),
    ...(systemIsReadOnly && !volumeInUsr
      ? [canary("root_view", `create /usr/${CANARY_FILE}`, "a file could be made in the system's folders", refused)]
      : []),
  ];
}

function network({ witness, gatewayAddresses, capturePorts }: CanaryFacts): readonly Canary[] {
  const inside = new Set([...capturePorts, DNS_PORT]);
  const gateway = gatewayAddresses
    .flatMap((text) => {
      const match = /^\[?([0-9a-fA-F.:]+?)\]?:(\d{1,5})$/.exec(text);
      return match === null ? [] : [{ address: match[1]!, port: Number(match[2]) }];
    })
    .slice(0, GATEWAY_ADDRESSES);
  return [
    // Whether the connection came out is for the witness to say: somebody inside may listen on that port.
    canary("network_capture", `tcp 127.0.0.1 ${witness.port}`, "a listener of the host was reached", (answer) =>
      answer < 0n ? "held" : "unclear",
    ),
    ...NOWHERE.map((address) =>
      canary("network_capture", `udp ${address} ${DNS_PORT}`, "a DNS query could leave", refused),
    ),
    ...gateway.map(({ address, port }) => {
      const loopback = address.startsWith("127.") || address === "::1";
      // TCP to any other address is accepted by the supervisor, who decides: what must not exist is a way around it.
      if (!loopback || inside.has(port)) {
        return canary(
          "network_capture",
          `udp ${loopback ? NOWHERE[0] : address} ${port}`,
          "a datagram could leave",
          refused,
        );
      }
      return canary("network_capture", `tcp ${address} ${port}`, "the gateway's own port was reached", refused);
    }),
  ];
}

function files({ restrictions: { landlock } }: CanaryFacts): readonly Canary[] {
  if (landlock === undefined) return [];
  const listable = landlock.rules.some(({ path }) => path === "/");
  return [
    // No rule ever grants device nodes, nor ioctl on /dev/zero; without Landlock the kernel lets anybody make this one.
    canary("landlock", `node /tmp/${CANARY_FILE}`, "a device node could be made", refusedWith(EACCES, [0n])),
    canary("landlock", "device /dev/zero", "a device took a command", refusedWith(EACCES, [])),
    ...(listable
      ? []
      : [canary("landlock", "list /", "a folder that no rule names could be listed", refusedWith(EACCES, [0n]))]),
  ];
}

function privileges({ restrictions, uid, gid }: CanaryFacts): readonly Canary[] {
  const processes = restrictions.rlimits.find(({ resource }) => resource === RLIMIT_NPROC)?.hard;
  return [
    canary("no_new_privs", "no-new-privileges", "programs can gain privileges", is(1n)),
    canary("capabilities", "capabilities", "capabilities are left", is(0n)),
    canary("capabilities", `ids ${uid} ${gid}`, "the process has other ids than the agent", is(0n)),
    canary("capabilities", "become 0", "the process could become root", refused),
    canary("capabilities", `socket ${AF_INET} ${SOCK_RAW} ${IPPROTO_ICMP}`, "a raw socket could be made", refused),
    canary("capabilities", "mount /tmp", "a file system could be mounted", refused),
    canary("seccomp", "filter", "no filter of system calls is in force", is(SECCOMP_MODE_FILTER)),
    canary(
      "seccomp",
      `socket ${AF_PACKET} ${SOCK_RAW} 0`,
      "the filter let a packet socket through",
      refusedWith(EAFNOSUPPORT, [0n, -EPERM]),
    ),
    canary("seccomp", `socket ${AF_VSOCK} ${SOCK_STREAM} 0`, "a socket to the hypervisor could be made", refused),
    canary("seccomp", "namespace", "a namespace could be made", refused),
    canary("seccomp", "trace 1", "init could be traced", refused),
    ...(processes === undefined
      ? []
      : [
          canary("limit_pids", `limit ${RLIMIT_NPROC}`, "more processes could be started", (answer) =>
            answer < 0n ? "unclear" : answer <= processes ? "held" : "through",
          ),
        ]),
  ];
}

function canary(layer: string, attempt: string, what: string, judge: (answer: bigint) => Verdict): Canary {
  return { layer, attempt, what, judge };
}

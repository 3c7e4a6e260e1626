/**
 * Every number of the egress path, once, with its reason. Limits that an operator may change arrive as
 * `EgressLimits`; the rest is fixed because changing it changes what is safe or compatible.
 */

/** Limits of one sandbox that configuration may change (docs/architecture/egress.md). */
export interface EgressLimits {
  /** Connections open at once, whatever their state. */
  readonly flows: number;
  /** Connections that have not yet shown what they are (head, ClientHello). */
  readonly pendingHandshakes: number;
  /** Bytes read from one side and not yet accepted by the other, over all connections. */
  readonly bufferedBytes: number;
  readonly dnsQueriesPerSecond: number;
  /** Names with a synthetic address. */
  readonly dnsNames: number;
  /** Sustained rate; a burst of twice as many is taken at once. */
  readonly newFlowsPerSecond: number;
}

export const DEFAULT_LIMITS: EgressLimits = {
  flows: 1024,
  pendingHandshakes: 256,
  bufferedBytes: 64 * 1024 * 1024,
  dnsQueriesPerSecond: 200,
  dnsNames: 4096,
  newFlowsPerSecond: 1000,
};

/** Pieces of a head or ClientHello that are read as they come. */
export const FREE_PIECES = 3;
/** Longest pause before a further piece: one look a second at a connection that says one byte at a time. */
export const MAX_DRIP_PAUSE_MS = 1_000;

/**
 * Milliseconds without a look at a connection of whose head so many pieces came, none of them the last: 1, and four times
 * the one before. Who has sent all of it waits for one pause at most, some three times as long as it took so far; who drips
 * costs next to nothing, a dozen looks in all before they come once a second.
 */
export function dripPause(pieces: number): number {
  return pieces < FREE_PIECES ? 0 : Math.min(4 ** (pieces - FREE_PIECES), MAX_DRIP_PAUSE_MS);
}

/** First head on the explicit proxy port: targets are short there, and nothing is known about the caller yet. */
export const PROXY_HEAD_BYTES = 8 * 1024;
/** Request head behind an allowed connection. */
export const REQUEST_HEAD_BYTES = 16 * 1024;
/** Response heads are larger in practice (content security policies, cookies). */
export const RESPONSE_HEAD_BYTES = 32 * 1024;
/** Field lines in one head. */
export const MAX_FIELDS = 256;
/** Trailer section of one message. */
export const TRAILER_BYTES = 8 * 1024;
/** One chunk-size line with its extensions, which are dropped. */
export const CHUNK_LINE_BYTES = 256;
/** Largest body length we believe; above it arithmetic on doubles is no longer exact. */
export const MAX_CONTENT_LENGTH = Number.MAX_SAFE_INTEGER;
/** Request target, as the reference has it. */
export const MAX_TARGET_LENGTH = 4096;
/** Interim (1xx) responses to one request. */
export const MAX_INTERIM_RESPONSES = 8;

/** Bytes that one direction of a connection reads ahead of its consumer: two socket reads. */
export const READ_AHEAD_BYTES = 128 * 1024;
/** Bytes handed to the kernel's or TLS's queue of one connection before its producer waits; stopping at each read costs half the throughput. */
export const WRITE_AHEAD_BYTES = 512 * 1024;
/** Read buffer of a tunnel; at the flow limit all of them fit the sandbox's 64 MiB. */
export const TUNNEL_BUFFER_BYTES = 64 * 1024;
/** Body of a denied request that is read and dropped to keep the connection; larger ones close it. */
export const DRAIN_BODY_BYTES = 64 * 1024;
/** After a final answer the client may still be sending: read and drop so much, so long, then close. */
export const LINGER_BYTES = 1024 * 1024;
export const LINGER_MS = 2_000;
/** Credentialed responses of a known length up to here are searched whole, so that they keep an exact Content-Length. */
export const SCRUB_WHOLE_BYTES = 64 * 1024;

/** From accept to the first complete head or ClientHello. */
export const HANDSHAKE_MS = 30_000;
/** Client silence after which an uninspected endpoint is taken for a protocol in which the server speaks first. */
export const SERVER_FIRST_MS = 500;
/** From the first byte of a further request head to its end. */
export const HEAD_MS = 30_000;
/** A kept-alive client connection without a request. */
export const CLIENT_IDLE_MS = 300_000;
/** Below the shortest keep-alive time of common servers (nginx 75 s, Node 5 s is handled by the retry). */
export const UPSTREAM_IDLE_MS = 15_000;
/** Answers of models that do not stream take minutes. */
export const RESPONSE_HEAD_MS = 900_000;
/** Between two pieces of a body; event streams are silent for minutes. */
export const BODY_IDLE_MS = 900_000;
/** One request from its head to the end of its response. */
export const REQUEST_TOTAL_MS = 24 * 3600_000;
export const TUNNEL_IDLE_MS = 4 * 3600_000;
export const TUNNEL_TOTAL_MS = 7 * 24 * 3600_000;
/** One address: connect and TLS handshake. */
export const DIAL_ADDRESS_MS = 10_000;
/** All addresses of one host. */
export const DIAL_TOTAL_MS = 30_000;
/** Upstream name resolution, both families. */
export const RESOLVE_MS = 10_000;
/** Addresses of one name that are looked at. */
export const MAX_ADDRESSES = 16;
/** Silence on a connection after which its owner is looked up again. */
export const REIDENTIFY_IDLE_MS = 1_000;

/** Idle upstream connections kept for one key, and for one sandbox. */
export const POOL_IDLE_PER_KEY = 32;
export const POOL_IDLE_TOTAL = 128;

/** Pauses before each lookup of an owner, milliseconds; after the last one the answer "nobody" is believed. */
export const IDENTIFY_PAUSES_MS = [0, 0, 2, 10, 40] as const;
/** Largest executable that is hashed; larger ones have no identity. */
export const MAX_HASHED_BYTES = 512 * 1024 * 1024;
/** An executable changed more recently than this may still be changing within one timestamp tick. */
export const CTIME_SETTLED_MS = 2_000;
/** Executables remembered for one sandbox. */
export const MAX_IDENTITIES = 4096;

/** Hosts with a ready leaf certificate, for one inspection CA. */
export const MAX_LEAVES = 256;
/** New leaf certificates that one sandbox may cause, sustained; signing takes about 2 ms. A burst of four times as many. */
export const LEAVES_PER_SECOND = 25;
/** Leaf certificates are short-lived; several platforms refuse long ones. */
export const LEAF_DAYS = 30;
/** Bytes looked at for a ClientHello: the largest TLS record. */
export const CLIENT_HELLO_BYTES = 16 * 1024 + 5;

/** Synthetic addresses; 198.18.0.0/15 is set aside for benchmarks (RFC 2544) and is never a real destination. */
export const SYNTHETIC_BASE = 0xc6120000;
export const SYNTHETIC_SIZE = 1 << 17;
/** Addresses for names that the policy does not mention; they are reused, oldest first. */
export const SHARED_NAMES = 1024;
/** TTL of synthetic answers, seconds: clients ask again soon, and reuse of a shared address is never hidden for long. */
export const SYNTHETIC_TTL = 5;
/** A longer question is none: names have 255 bytes. */
export const DNS_MESSAGE_BYTES = 4_096;
/** Questions over UDP that wait for their turn: a second of the default rate, while resolvers wait five. Further ones are lost. */
export const DNS_WAITING = 200;
export const DNS_TCP_CONNECTIONS = 64;
export const DNS_TCP_IDLE_MS = 10_000;
/** A connection that asks faster than it may is not read for so long. */
export const DNS_TCP_PAUSE_MS = 50;
/** New names are saved for a successor at most so often: the whole table travels each time. */
export const SAVE_DELAY_MS = 250;
/** `Boundary.saveState` takes so much. */
export const STATE_BYTES = 256 * 1024;

/** What one sandbox may take of the event loop before its neighbours are served, while any other has work. */
export const SHARE_SLICE_MS = 0.5;
/** The same while no other sandbox of the host has work; commands and configuration are served in between. */
export const SHARE_ALONE_MS = 10;
/** What an event costs before anybody can measure it: the loop, the system call, Node's own layers. */
export const SHARE_EVENT_MS = 0.015;
/** So long after two sandboxes had work they count as neighbours. */
export const SHARE_CONTENDED_MS = 1_000;

/** Part of the time above which a sandbox takes new connections more slowly while another has work. */
export const ADMISSION_PART = 1 / 10;
/** So much may be used before: what opening a dozen connections to new hosts takes. */
export const ADMISSION_BURST_MS = 25;
/** What a connection costs beside what is measured: Node's own layers when it comes and goes, and what is collected afterwards. */
export const ADMISSION_COST_MS = 0.3;
/** Longest pause before one more is taken: 66 a second, however busy the sandbox is. */
export const ADMISSION_PAUSE_MS = 15;

/** Ports of control planes (etcd, Kubernetes, kubelet) that are refused on every declared destination. */
export const CONTROL_PLANE_PORTS: ReadonlySet<number> = new Set([2379, 2380, 6443, 10250, 10255]);
/** The explicit proxy inside the sandbox. */
export const PROXY_PORT = 3128;
/** First and longest pause before listening is tried again when no descriptor was left for it. */
export const RESUME_RETRY_MS = 100;
export const RESUME_RETRY_MAX_MS = 5_000;
/** Accepted while over a limit and waiting; further ones are reset. */
export const MAX_WAITING_FLOWS = 256;

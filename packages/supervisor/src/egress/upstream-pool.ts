import type { OnReadOpts, Socket } from "node:net";
import { checkServerIdentity, type SecureContext, TLSSocket, connect as tlsConnect } from "node:tls";
import { RuntimeError, systemCode } from "@openshell/base";
import { type AddressBytes, formatAddress } from "./address.ts";
import { type BufferBudget, Channel, type Deadlines } from "./channel.ts";
import type { Dialer } from "./context.ts";
import type { FairShare } from "./fair-share.ts";
import { isIpLiteral } from "./host-name.ts";
import { DIAL_ADDRESS_MS, DIAL_TOTAL_MS, POOL_IDLE_PER_KEY, POOL_IDLE_TOTAL, UPSTREAM_IDLE_MS } from "./limits.ts";

export interface UpstreamWish {
  readonly host: string;
  readonly port: number;
  /** Pinned and checked; tried in order. */
  readonly addresses: readonly AddressBytes[];
  /** Trust of a TLS connection; undefined is plain TCP. */
  readonly tls: SecureContext | undefined;
  /** Credential that the request carries, or empty. */
  readonly credential: string;
  /** False when nobody waits for the connection any more; asked before each address. */
  readonly wanted: () => boolean;
}

/** One upstream connection; kept as the same object over its whole life. */
export interface Upstream {
  readonly channel: Channel;
  readonly key: string;
  /** It carried a request before: the server may have closed it meanwhile. */
  reused: boolean;
  /** Since when it rests; undefined while in use. */
  idleSince: number | undefined;
}

/**
 * Upstream HTTP/1 connections of one sandbox. A connection is used again only for the same scheme, host, port, pinned
 * address, trust and credential; whatever arrives while nobody asked ends it.
 */
export class UpstreamPool {
  readonly #dial: Dialer;
  readonly #budget: BufferBudget;
  readonly #deadlines: Deadlines;
  readonly #share: FairShare;
  readonly #idle = new Map<string, Upstream[]>();
  readonly #trustKeys = new WeakMap<SecureContext, number>();
  #nextTrustKey = 1;
  #idleCount = 0;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(dial: Dialer, budget: BufferBudget, deadlines: Deadlines, share: FairShare) {
    this.#dial = dial;
    this.#share = share;
    this.#budget = budget;
    this.#deadlines = deadlines;
  }

  get idle(): number {
    return this.#idleCount;
  }

  /** An idle connection that rested at most `maxRestMs`, else a new one. Rejects with `upstream_unreachable` or `upstream_untrusted`. */
  acquire(wish: UpstreamWish, maxRestMs: number): Upstream | Promise<Upstream> {
    const now = this.#deadlines.now();
    for (const address of wish.addresses) {
      const key = this.#key(wish, address);
      const list = this.#idle.get(key);
      if (list === undefined) continue;
      // Newest last: the one least likely to be closed by the server.
      while (list.length > 0) {
        const candidate = list[list.length - 1]!;
        if (now - candidate.idleSince! > maxRestMs) break;
        this.#drop(candidate);
        candidate.channel.unsolicited = undefined;
        if (!candidate.channel.closed && !candidate.channel.ended) return candidate;
      }
    }
    return this.#connect(wish);
  }

  /** Gives a connection back after a complete exchange. */
  release(upstream: Upstream): void {
    const { channel, key } = upstream;
    const list = this.#idle.get(key) ?? [];
    if (
      this.#closed ||
      channel.closed ||
      channel.ended ||
      channel.buffered > 0 ||
      list.length >= POOL_IDLE_PER_KEY ||
      this.#idleCount >= POOL_IDLE_TOTAL
    ) {
      channel.destroy();
      return;
    }
    upstream.reused = true;
    upstream.idleSince = this.#deadlines.now();
    channel.unsolicited = () => {
      this.#drop(upstream);
      channel.destroy();
    };
    list.push(upstream);
    this.#idle.set(key, list);
    this.#idleCount += 1;
    this.#timer ??= setInterval(() => this.#expire(), 1_000).unref();
  }

  /** Ends every idle connection. */
  clear(): void {
    this.#expire(Number.POSITIVE_INFINITY);
  }

  close(): void {
    this.#closed = true;
    this.clear();
  }

  #expire(oldest = this.#deadlines.now() - UPSTREAM_IDLE_MS): void {
    for (const list of [...this.#idle.values()]) {
      for (const upstream of [...list]) {
        if (upstream.idleSince! > oldest) continue;
        this.#drop(upstream);
        upstream.channel.destroy();
      }
    }
  }

  #drop(upstream: Upstream): void {
    if (upstream.idleSince === undefined) return;
    upstream.idleSince = undefined;
    const list = this.#idle.get(upstream.key)!;
    list.splice(list.indexOf(upstream), 1);
    this.#idleCount -= 1;
    if (list.length === 0) this.#idle.delete(upstream.key);
    if (this.#idleCount === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
  }

  #key(wish: UpstreamWish, address: AddressBytes): string {
    let trust = 0;
    if (wish.tls !== undefined) {
      trust = this.#trustKeys.get(wish.tls) ?? this.#nextTrustKey++;
      this.#trustKeys.set(wish.tls, trust);
    }
    return `${trust} ${wish.host} ${wish.port} ${address.join(".")} ${wish.credential}`;
  }

  async #connect(wish: UpstreamWish): Promise<Upstream> {
    const until = this.#deadlines.now() + DIAL_TOTAL_MS;
    let last: unknown;
    for (const address of wish.addresses) {
      const left = until - this.#deadlines.now();
      if (left <= 0 || !wish.wanted()) break;
      try {
        const socket = await openUpstream(this.#dial, wish, address, Math.min(left, DIAL_ADDRESS_MS));
        const channel = new Channel(socket, this.#budget, this.#deadlines, this.#share);
        if (this.#closed) {
          channel.destroy();
          throw new RuntimeError("sandbox_closed", "The sandbox is closing");
        }
        const upstream: Upstream = { channel, key: this.#key(wish, address), reused: false, idleSince: undefined };
        channel.onClose(() => this.#drop(upstream));
        return upstream;
      } catch (error) {
        last = error;
        // Another address of the same name shows the same certificate problem, or is an attacker's chance.
        if (error instanceof RuntimeError && error.code === "upstream_untrusted") throw error;
      }
    }
    throw (
      last ?? new RuntimeError("upstream_unreachable", `No address of ${wish.host}:${wish.port} could be tried in time`)
    );
  }
}

/** One address. The socket is connected, and for TLS its certificate is verified for `host`. */
export function openUpstream(
  dial: Dialer,
  wish: Pick<UpstreamWish, "host" | "port" | "tls">,
  address: AddressBytes,
  limitMs: number,
  onread?: OnReadOpts,
): Promise<Socket> {
  const { host, port, tls } = wish;
  const raw = dial(formatAddress(address), port, onread);
  // Its first bytes must wait for whoever gets the socket.
  if (onread !== undefined) raw.pause();
  raw.setNoDelay(true);
  raw.setKeepAlive(true, 60_000);
  const socket =
    tls === undefined
      ? raw
      : tlsConnect({
          socket: raw,
          secureContext: tls,
          rejectUnauthorized: true,
          ALPNProtocols: ["http/1.1"],
          ...(isIpLiteral(host) ? {} : { servername: host }),
          checkServerIdentity: (_, certificate) => checkServerIdentity(host, certificate),
        });
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => fail(Object.assign(new Error("timed out"), { code: "ETIMEDOUT" })), limitMs);
    const fail = (cause: Error): void => {
      clearTimeout(timer);
      socket.on("error", () => undefined);
      raw.on("error", () => undefined);
      socket.destroy();
      raw.destroy();
      reject(dialError(host, port, cause, tls !== undefined));
    };
    const onClose = (): void => fail(Object.assign(new Error("closed"), { code: "ECONNRESET" }));
    socket.once("error", fail);
    socket.once("close", onClose);
    if (socket !== raw) raw.once("error", fail);
    socket.once(tls === undefined ? "connect" : "secureConnect", () => {
      if (socket instanceof TLSSocket && !socket.authorized) {
        fail(Object.assign(new Error("not authorised"), { code: "ERR_TLS_CERT_UNVERIFIED" }));
        return;
      }
      clearTimeout(timer);
      socket.off("error", fail);
      socket.off("close", onClose);
      if (socket !== raw) {
        raw.off("error", fail);
        raw.on("error", () => undefined);
      }
      resolve(socket);
    });
  });
}

const CERTIFICATE_PROBLEM =
  /^(?:ERR_TLS_CERT|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|INVALID_CA|INVALID_PURPOSE|HOSTNAME_MISMATCH|ERROR_IN_CERT|PATH_LENGTH)/;

function dialError(host: string, port: number, cause: Error, secure: boolean): RuntimeError {
  const code = systemCode(cause) ?? "unknown error";
  if (secure && CERTIFICATE_PROBLEM.test(code)) {
    return new RuntimeError("upstream_untrusted", `The certificate of ${host}:${port} is not trusted (${code})`, {
      next: "If it is issued by your own CA, add that to [openshell.supervisor.network] additional_ca_bundle.",
      cause,
    });
  }
  return new RuntimeError("upstream_unreachable", `${host}:${port} cannot be reached (${code})`, {
    next: "Check that the service runs and that the gateway's machine reaches it.",
    cause,
  });
}

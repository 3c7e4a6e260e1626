import type { Socket } from "node:net";
import { RuntimeError } from "@openshell/base";
import type { SocketPair } from "@openshell/boundary";
import { Channel } from "./channel.ts";
import type { EgressContext } from "./context.ts";
import { connectionBody, type ErrorBody, formatError } from "./denial.ts";
import type { DenialCode } from "./denial-code.ts";
import type { ConnectionEvent, Origin } from "./events.ts";
import { finding } from "./findings.ts";
import type { Generation, Subject } from "./generation.ts";
import { normaliseHost, parseAuthority } from "./host-name.ts";
import { HttpSession, type SessionFlow } from "./http-session.ts";
import { HttpParseError, parseRequestHead, type RequestHead } from "./http1/head.ts";
import { readHead } from "./http1/read-head.ts";
import { type Owner, sameOwners } from "./identify.ts";
import {
  CLIENT_HELLO_BYTES,
  DIAL_ADDRESS_MS,
  dripPause,
  HANDSHAKE_MS,
  PROXY_HEAD_BYTES,
  REQUEST_HEAD_BYTES,
  SERVER_FIRST_MS,
} from "./limits.ts";
import { type ClientHello, type Sniffed, sniff } from "./sniff.ts";
import { type Access, type Refusal, Target } from "./target.ts";
import { acceptTls } from "./tls/accept.ts";
import { DirectReader, Tunnel } from "./tunnel.ts";
import { openUpstream } from "./upstream-pool.ts";

/** A connection as capture hands it over. */
export interface Accepted {
  readonly socket: Socket;
  readonly origin: Origin;
  readonly pair: SocketPair;
  /** What the agent wanted to reach; undefined on the explicit proxy, where the request says it. */
  readonly destination: FlowDestination | undefined;
}

export type FlowDestination =
  | { readonly known: true; readonly host: string; readonly port: number }
  /** A synthetic address that stands for no name (any more). */
  | { readonly known: false; readonly address: string; readonly port: number };

/**
 * One connection of the agent, from accept to its end: who owns it, may it go there, what does it speak, and then the
 * engine for that. Both ways in join after the destination is known.
 */
export class Flow implements Subject, SessionFlow {
  readonly origin: Origin;
  owners: readonly Owner[] = [];
  readonly #context: EgressContext;
  readonly #accepted: Accepted;
  readonly #onRecognised: () => void;
  #recognised = false;
  #channel: Channel;
  #target: Target | undefined;
  /** The allowed access that a raw connection was opened with: it cannot change its nature later. */
  #rawAccess: Access | undefined;
  #session: HttpSession | undefined;
  #end: (() => void) | undefined;
  #ended = false;

  /** `onRecognised` is called once, when it is known what the connection is. */
  constructor(context: EgressContext, accepted: Accepted, onRecognised: () => void) {
    this.#context = context;
    this.#accepted = accepted;
    this.#onRecognised = onRecognised;
    this.origin = accepted.origin;
    this.#channel = new Channel(accepted.socket, context.budget, context.deadlines, context.share);
  }

  /** Resolves when the connection is over. Never rejects. */
  async run(): Promise<void> {
    const { generations, share } = this.#context;
    generations.register(this);
    try {
      const turn = share.turn();
      if (turn !== undefined) await turn;
      if (this.#accepted.destination === undefined) await this.#explicit();
      else await this.#transparent(this.#accepted.destination);
    } catch (error) {
      // A break while nothing was decided yet leaves nobody to tell; anything else is our mistake and must be seen.
      if (!(error instanceof RuntimeError || error instanceof HttpParseError)) this.#context.onError(error);
    } finally {
      generations.unregister(this);
      this.#recognise();
      if (!this.#channel.finished) this.#channel.destroy();
    }
  }

  /** Ends at once, without a word to the log: the sandbox is going away. */
  destroy(): void {
    this.#ended = true;
    this.#end?.();
    this.#channel.destroy(true);
  }

  async reidentify(): Promise<string | undefined> {
    const found = await this.#context.identifier.identify(this.#accepted.pair);
    if (!found.known) return found.reason;
    if (!sameOwners(this.owners, found.owners)) this.owners = found.owners;
    return undefined;
  }

  reconsider(next: Generation): void {
    const target = this.#target;
    if (this.#ended || this.owners.length === 0) return;
    if (this.#session !== undefined && target === undefined) {
      this.#session.reconsider(next);
      return;
    }
    if (target === undefined) return;
    const refusal = target.reconsider(next, this.owners) ?? this.#rawRefusal(target);
    if (refusal !== undefined) {
      this.#ended = true;
      this.#report(next, "ended", target, refusal);
      this.#end?.();
      this.#channel.destroy(true);
    } else {
      if (target.policy !== "") this.#context.skipped.tell(next.policy, target, this.owners);
      this.#session?.reconsider(next);
    }
  }

  /** Bytes that nobody looked into may not flow on where the new generation wants to look. */
  #rawRefusal(target: Target): Refusal | undefined {
    const raw = this.#rawAccess;
    if (raw === undefined) return undefined;
    const now = target.policy === "" ? undefined : target.access;
    if (now !== undefined && now.tls === raw.tls && now.inspected === raw.inspected) return undefined;
    return {
      status: 403,
      engine: "opa",
      code: "policy_changed",
      kind: "",
      policy: target.policy,
      reason: "the policy now inspects this endpoint",
      next: "Connect again.",
    };
  }

  async #explicit(): Promise<void> {
    const channel = this.#channel;
    const identified = this.#identify();
    let head: RequestHead;
    let bytes: Buffer | undefined;
    try {
      bytes = await readHead(channel, PROXY_HEAD_BYTES, HANDSHAKE_MS, HANDSHAKE_MS);
      if (bytes === undefined) return;
      head = parseRequestHead(bytes);
    } catch (error) {
      await identified;
      if (error instanceof HttpParseError) {
        const next = "Send well-formed HTTP/1.1.";
        await this.#reply(error.rule === "head_size" ? 431 : 400, {
          error: "invalid_request",
          detail: error.message,
          next,
        });
      }
      return;
    }
    this.#recognise();
    const failure = await identified;
    if (head.method !== "CONNECT") {
      if (failure !== undefined) {
        await this.#refuseProxy(`${head.method} request`, undefined, failure);
        return;
      }
      channel.unread(bytes);
      await this.#http(channel, "http", undefined);
      return;
    }
    const authority = parseAuthority(head.target, undefined);
    if (authority === undefined || head.framing.kind !== "none") {
      const next = "Send CONNECT host:port without a body; IPv6 addresses stand in brackets.";
      await this.#reply(400, { error: "invalid_request", detail: "The CONNECT target is not host:port", next });
      return;
    }
    const target = new Target(authority.host, authority.port);
    const what = `CONNECT ${authority.host}:${authority.port}`;
    const refusal = failure ?? (await this.#authorise(target));
    const wantsTls = authority.port === 443 && (head.fields.has("user-agent") || head.fields.has("proxy-connection"));
    if (refusal !== undefined && !wantsTls) {
      await this.#refuseProxy(what, target, refusal);
      return;
    }
    if (refusal === undefined && isRaw(target.access)) {
      await this.#raw(channel, target, { connect: true });
      return;
    }
    const wait = channel.write("HTTP/1.1 200 Connection Established\r\n\r\n", HANDSHAKE_MS, "latin1");
    if (wait !== undefined) await wait;
    // curl, git and fetch show nothing of an answer to CONNECT but its number. A client that introduces itself as one of
    // them gets the refusal as the answer to its request, where it shows it; nothing is dialled either way.
    if (refusal !== undefined) await this.#refuse(channel, target, refusal);
    else await this.#serve(channel, target);
  }

  async #transparent(destination: FlowDestination): Promise<void> {
    const failure = await this.#identify();
    if (!destination.known) {
      const { address, port } = destination;
      const refusal: Refusal = {
        status: 403,
        engine: "opa",
        code: "policy_denied",
        kind: "",
        policy: "",
        reason: "transparent_tcp_mapping_missing: the address stands for no name any more",
        next: "Resolve the name again and connect to the address it gives.",
      };
      await this.#refuse(this.#channel, new Target(address, port), refusal);
      return;
    }
    const target = new Target(destination.host, destination.port);
    const refusal = failure ?? (await this.#authorise(target));
    if (refusal !== undefined) {
      await this.#refuse(this.#channel, target, refusal);
      return;
    }
    if (isRaw(target.access)) await this.#raw(this.#channel, target, { connect: false });
    else await this.#serve(this.#channel, target);
  }

  async #identify(): Promise<Refusal | undefined> {
    const { identifier, share } = this.#context;
    const found = await identifier.identify(this.#accepted.pair);
    const turn = share.turn();
    if (turn !== undefined) await turn;
    if (found.known) {
      this.owners = found.owners;
      return undefined;
    }
    return {
      status: 403,
      engine: "identity",
      code: "policy_denied",
      kind: "",
      policy: "",
      reason: found.reason,
      next: "Retry; if it persists, check that the program still runs and can be read.",
    };
  }

  /** Decides under the current generation, also when that changes while a name is being resolved. */
  async #authorise(target: Target): Promise<Refusal | undefined> {
    const { generations } = this.#context;
    for (;;) {
      const generation = generations.current;
      const refusal = await target.authorise(generation, this.owners);
      if (generation !== generations.current) continue;
      if (refusal === undefined) {
        this.#target = target;
        this.#report(generation, "allowed", target, undefined);
        this.#context.skipped.tell(generation.policy, target, this.owners);
      }
      return refusal;
    }
  }

  /** An allowed connection whose protocol decides what happens to it. */
  async #serve(channel: Channel, target: Target): Promise<void> {
    const kind = await this.#sniff(channel, target.access.inspected ? HANDSHAKE_MS : SERVER_FIRST_MS);
    this.#recognise();
    if (kind === undefined) return;
    switch (kind.kind) {
      case "tls":
        await this.#tls(channel, target, kind.hello);
        return;
      case "http1":
        await this.#http(channel, "http", target);
        return;
      default:
        // Asked anew: a publication may have come while the client was silent.
        if (target.access.inspected) await this.#unsupported(channel, target, kind.kind === "h2");
        // Silence must not be a way around inspection: what is TLS or HTTP after all has to say so at once.
        else await this.#raw(channel, target, { connect: false, refuseFirst: looksInspectable });
    }
  }

  async #tls(channel: Channel, target: Target, hello: ClientHello): Promise<void> {
    const named = hello.serverName === undefined ? target.host : normaliseHost(hello.serverName);
    const { generations } = this.#context;
    if (named !== target.host) {
      this.#context.events.finding(finding("serverNameMismatch", target, this.owners, target.policy));
      await this.#refuse(channel, target, {
        status: 403,
        engine: "tls",
        code: "request_authority_mismatch",
        kind: "",
        policy: target.policy,
        reason: "The TLS server name differs from the host of the connection",
        next: `Connect to the host itself; this connection goes to ${target.host}:${target.port}.`,
      });
      return;
    }
    if (target.access.tls === "skip") {
      await this.#refuse(channel, target, {
        status: 403,
        engine: "tls",
        code: "unsupported_l7_protocol",
        kind: "",
        policy: target.policy,
        reason: "The endpoint judges requests and at the same time forbids opening TLS",
        next: "Remove tls: skip or the protocol from the endpoint.",
      });
      return;
    }
    const speakable = hello.alpn === undefined || hello.alpn.includes("http/1.1");
    if (!speakable) {
      // Going on ends in a handshake alert; the log says what to do about it.
      this.#report(generations.current, "denied", target, {
        status: 0,
        engine: "tls",
        code: "unsupported_l7_protocol",
        kind: "",
        policy: target.policy,
        reason: "the client offers no protocol that can be inspected (ALPN without http/1.1)",
        next: "Let the client speak HTTP/1.1, or set tls: skip on an endpoint without inspection.",
      });
    }
    let inner: Channel;
    try {
      inner = await this.#acceptTls(channel, target.host);
    } catch (error) {
      if (speakable) this.#reportFailure(target, "tls", "tls_handshake_failed", error);
      return;
    }
    this.#channel = inner;
    const kind = await this.#sniff(inner, HANDSHAKE_MS);
    if (kind === undefined) return;
    if (kind.kind === "http1") await this.#http(inner, "https", target);
    else if (target.access.inspected || kind.kind === "h2") await this.#unsupported(inner, target, kind.kind === "h2");
    else await this.#raw(inner, target, { connect: false, secure: true });
  }

  /** Rejects, with the connection gone, when the client breaks off or makes up names faster than certificates are signed. */
  async #acceptTls(channel: Channel, host: string): Promise<Channel> {
    const { leaves, leafRate, budget, deadlines, share } = this.#context;
    if (!leaves.has(host) && !leafRate.take()) {
      this.#context.onLimit("tlsHostsPerSecond");
      channel.destroy(true);
      throw new RuntimeError("too_many_hosts", "More new TLS hosts than can be served", {
        next: "Wait a moment, or contact fewer different hosts.",
      });
    }
    const secureContext = await leaves.context(host);
    // The handshake is computed as soon as it is accepted.
    const turn = share.turn();
    if (turn !== undefined) await turn;
    return acceptTls(channel, secureContext, budget, deadlines, share);
  }

  async #http(channel: Channel, scheme: "http" | "https", target: Target | undefined): Promise<void> {
    const headLimit = target === undefined ? PROXY_HEAD_BYTES : REQUEST_HEAD_BYTES;
    this.#session = new HttpSession(this.#context, this, channel, { scheme, target, headLimit });
    await this.#session.run();
  }

  /** Bytes as they are. On an explicit connection the answer to CONNECT waits for the upstream connection. */
  async #raw(channel: Channel, target: Target, how: RawOptions): Promise<void> {
    this.#recognise();
    const context = this.#context;
    const { access } = target;
    this.#rawAccess = access;
    // Decrypted bytes come through the TLS layer, which has buffers of its own.
    const reader = how.secure ? undefined : new DirectReader();
    let upstream: Socket | undefined;
    let failure: unknown;
    for (const address of target.addresses) {
      // Asked before each attempt: a publication may have ended the connection meanwhile.
      if (this.#ended || channel.closed) return;
      try {
        const tls = how.secure ? context.generations.current.network.upstreamTls : undefined;
        upstream = await openUpstream(
          context.dial,
          { host: target.host, port: target.port, tls },
          address,
          DIAL_ADDRESS_MS,
          reader?.onread,
        );
        break;
      } catch (error) {
        failure = error;
      }
    }
    if (upstream === undefined) {
      if (this.#ended) return;
      this.#reportFailure(target, "upstream", "upstream_unreachable", failure);
      const { message, next } = failure as RuntimeError;
      if (how.connect) await this.#reply(502, { error: "upstream_unreachable", detail: message, next });
      else channel.destroy(true);
      return;
    }
    if (this.#ended || channel.closed) {
      upstream.destroy();
      return;
    }
    if (how.connect)
      void channel.write("HTTP/1.1 200 Connection Established\r\n\r\n", HANDSHAKE_MS, "latin1")?.catch(() => undefined);
    const tunnel = new Tunnel(channel.detach(), upstream, context, how.refuseFirst);
    this.#end = () => tunnel.destroy();
    await tunnel.run(reader);
  }

  /** Undefined: the client went away without a word. No word within `limitMs` counts as a protocol of its own. */
  async #sniff(channel: Channel, limitMs: number): Promise<Exclude<Sniffed, { kind: "more" }> | undefined> {
    let bytes: Buffer = Buffer.alloc(0);
    const until = channel.now() + HANDSHAKE_MS;
    for (let pieces = 0; ; pieces += 1) {
      const pause = dripPause(pieces);
      if (pause > 0) await channel.rest(pause);
      if (bytes.length === 0 && limitMs < HANDSHAKE_MS) {
        if (!(await channel.readable(limitMs))) return { kind: "other" };
      }
      const chunk: Buffer | null = await channel.read(Math.max(1, until - channel.now()));
      if (chunk === null) {
        if (bytes.length === 0) return undefined;
        channel.unread(bytes);
        return { kind: "other" };
      }
      bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
      const found = sniff(bytes);
      if (found.kind === "more" && bytes.length <= CLIENT_HELLO_BYTES * 2) continue;
      channel.unread(bytes);
      return found.kind === "more" ? { kind: "other" } : found;
    }
  }

  async #unsupported(channel: Channel, target: Target, h2: boolean): Promise<void> {
    const reason = h2
      ? "HTTP/2 is not supported on inspected endpoints"
      : "the endpoint is inspected and the connection does not speak HTTP";
    const next = h2
      ? "Let the client speak HTTP/1.1, or set tls: skip on an endpoint without inspection."
      : "Remove the protocol from the endpoint to pass its bytes on without inspection.";
    this.#report(this.#context.generations.current, "denied", target, {
      status: 403,
      engine: "l7",
      code: "unsupported_l7_protocol",
      kind: "",
      policy: target.policy,
      reason,
      next,
    });
    await this.#write(channel, formatError(403, { error: "unsupported_l7_protocol", detail: reason, next }));
    await channel.linger();
  }

  async #refuseProxy(what: string, target: Target | undefined, refusal: Refusal): Promise<void> {
    this.#recognise();
    this.#report(
      this.#context.generations.current,
      refusal.engine === "upstream" ? "failed" : "denied",
      target,
      refusal,
    );
    await this.#reply(refusal.status, connectionBody(refusal, what), refusal.policy, refusal.reason);
  }

  /** A captured client asked for nothing yet, so the refusal is told in the protocol it speaks; others see a reset. */
  async #refuse(channel: Channel, target: Target, refusal: Refusal): Promise<void> {
    const context = this.#context;
    this.#report(context.generations.current, refusal.engine === "upstream" ? "failed" : "denied", target, refusal);
    let kind = await this.#sniff(channel, HANDSHAKE_MS);
    this.#recognise();
    let speaking = channel;
    if (kind?.kind === "tls") {
      const named = kind.hello.serverName === undefined ? undefined : normaliseHost(kind.hello.serverName);
      speaking = await this.#acceptTls(channel, named ?? target.host);
      this.#channel = speaking;
      kind = await this.#sniff(speaking, HANDSHAKE_MS);
    }
    if (kind?.kind !== "http1") {
      speaking.destroy(true);
      return;
    }
    const head = parseRequestHead((await readHead(speaking, REQUEST_HEAD_BYTES, HANDSHAKE_MS, HANDSHAKE_MS))!);
    const body = connectionBody(refusal, `${head.method} ${target.host}:${target.port}`);
    await this.#write(
      speaking,
      formatError(refusal.status, body, { policy: refusal.policy, head: head.method === "HEAD" }),
    );
    await speaking.linger();
  }

  async #reply(status: number, body: ErrorBody, policy = "", phrase = ""): Promise<void> {
    const channel = this.#channel;
    await this.#write(channel, formatError(status, body, { policy, phrase }));
    // Unread bytes would turn the end into a reset, and the answer would be lost.
    if (channel.buffered === 0) channel.finish();
    else await channel.linger();
  }

  async #write(channel: Channel, bytes: Buffer): Promise<void> {
    const wait = channel.write(bytes, HANDSHAKE_MS);
    if (wait !== undefined) await wait;
  }

  #recognise(): void {
    if (this.#recognised) return;
    this.#recognised = true;
    this.#onRecognised();
  }

  #report(
    generation: Generation,
    outcome: ConnectionEvent["outcome"],
    target: Target | undefined,
    refusal: Refusal | undefined,
  ): void {
    this.#context.events.connection({
      outcome,
      origin: this.origin,
      host: target?.host ?? "",
      port: target?.port ?? 0,
      owners: this.owners,
      policy: refusal?.policy ?? target?.policy ?? "",
      engine: refusal?.engine ?? "opa",
      code: refusal?.code ?? "",
      reason: refusal?.reason ?? "",
      next: refusal?.next ?? "",
      generation: generation.number,
    });
  }

  #reportFailure(target: Target, engine: ConnectionEvent["engine"], code: DenialCode, error: unknown): void {
    const { message, next } = error as RuntimeError;
    this.#report(this.#context.generations.current, "failed", target, {
      status: 502,
      engine,
      code,
      kind: "",
      policy: target.policy,
      reason: message,
      next: next ?? "",
    });
  }
}

function isRaw(access: Access): boolean {
  return access.tls === "skip" && !access.inspected;
}

interface RawOptions {
  /** The client waits for the answer to its CONNECT. */
  readonly connect: boolean;
  /** The upstream connection speaks TLS, since the client's was opened. */
  readonly secure?: boolean;
  readonly refuseFirst?: (bytes: Buffer) => boolean;
}

function looksInspectable(bytes: Buffer): boolean {
  const { kind } = sniff(bytes);
  return kind === "http1" || bytes[0] === 0x16;
}

import { createSocket, type RemoteInfo, type Socket as UdpSocket } from "node:dgram";
import { createServer, type Server, type Socket } from "node:net";
import type { FairShare } from "../fair-share.ts";
import { holdMessages, holdReads, releaseMessages, releaseReads } from "../hold-reads.ts";
import { normaliseHost } from "../host-name.ts";
import type { LimitName } from "../limit-events.ts";
import { DNS_MESSAGE_BYTES, DNS_TCP_CONNECTIONS, DNS_TCP_IDLE_MS, DNS_TCP_PAUSE_MS, DNS_WAITING } from "../limits.ts";
import type { TokenBucket } from "../rate.ts";
import { formatAnswer, formatError, parseQuery, RCODE, TYPE } from "./codec.ts";
import type { NameTable } from "./names.ts";

/** Answers the sandbox's DNS questions from the name table alone: no question ever leaves the machine. */
export class DnsServer implements AsyncDisposable {
  readonly #names: NameTable;
  readonly #rate: TokenBucket;
  readonly #share: FairShare;
  readonly #onLimit: (limit: LimitName) => void;
  readonly #connections = new Set<Socket>();
  readonly #waiting: { readonly message: Buffer; readonly peer: RemoteInfo }[] = [];
  #timer: NodeJS.Timeout | undefined;
  /** The questions that wait are answered when it is the sandbox's turn. */
  #turn = false;
  /** As many questions wait as may: the kernel loses further ones, at no cost of ours. */
  #held = false;
  #udp: UdpSocket | undefined;
  #tcp: Server | undefined;

  constructor(names: NameTable, rate: TokenBucket, share: FairShare, onLimit: (limit: LimitName) => void = () => {}) {
    this.#names = names;
    this.#share = share;
    this.#rate = rate;
    this.#onLimit = onLimit;
  }

  /** Takes over the two descriptors: bound UDP, listening TCP. */
  async start(sockets: { readonly udpFd: number; readonly tcpFd: number }): Promise<void> {
    const udp = createSocket("udp4");
    this.#udp = udp;
    udp.on("message", (message, peer) => this.#ask(message, peer));
    const tcp = createServer((socket) => this.#serve(socket));
    this.#tcp = tcp;
    await Promise.all([
      started(udp, (done) => udp.bind({ fd: sockets.udpFd }, done)),
      started(tcp, (done) => tcp.listen({ fd: sockets.tcpFd }, done)),
    ]);
  }

  /** Above the rate a question waits for its turn: most resolvers notice a lost one after five seconds only. */
  #ask(message: Buffer, peer: RemoteInfo): void {
    if (message.length > DNS_MESSAGE_BYTES) return;
    if (this.#waiting.length < DNS_WAITING) this.#waiting.push({ message, peer });
    if (this.#waiting.length >= DNS_WAITING && !this.#held && this.#udp !== undefined) {
      this.#held = true;
      holdMessages(this.#udp);
    }
    if (this.#timer !== undefined || this.#turn) return;
    if (this.#share.ready()) this.#answerWaiting();
    else {
      this.#turn = true;
      this.#share.later(() => {
        this.#turn = false;
        this.#answerWaiting();
      });
    }
  }

  #answerWaiting(): void {
    this.#timer = undefined;
    this.#answerSome();
    // Not at the first free place: each beginning reads dozens.
    if (!this.#held || this.#waiting.length > DNS_WAITING / 2 || this.#udp === undefined) return;
    this.#held = false;
    releaseMessages(this.#udp);
  }

  #answerSome(): void {
    while (this.#waiting.length > 0) {
      const pause = this.#rate.waitMs;
      if (pause > 0) {
        this.#onLimit("dnsQueriesPerSecond");
        this.#timer = setTimeout(() => this.#answerWaiting(), pause);
        return;
      }
      const { message, peer } = this.#waiting.shift()!;
      const answer = this.answer(message);
      if (answer !== undefined) this.#udp?.send(answer, peer.port, peer.address);
    }
  }

  /** Undefined: no answer (not a query, or above the rate: the client asks again). */
  answer(message: Buffer): Buffer | undefined {
    if (!this.#rate.take()) {
      this.#onLimit("dnsQueriesPerSecond");
      return undefined;
    }
    const parsed = parseQuery(message);
    if (parsed.kind === "ignore") return undefined;
    if (parsed.kind === "error") return formatError(parsed.id, parsed.rcode);
    const { question } = parsed;
    if (question.class !== 1) return formatAnswer(question, RCODE.notImplemented, undefined);
    const name = normaliseHost(question.name);
    if (name === undefined || question.type !== TYPE.a) return formatAnswer(question, RCODE.noError, undefined);
    const address = this.#names.addressOf(name);
    if (address === undefined) {
      this.#onLimit("dnsNames");
      return formatAnswer(question, RCODE.serverFailure, undefined);
    }
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(address);
    return formatAnswer(question, RCODE.noError, bytes);
  }

  #serve(socket: Socket): void {
    socket.on("error", () => socket.destroy());
    if (this.#connections.size >= DNS_TCP_CONNECTIONS) {
      this.#onLimit("dnsConnections");
      socket.destroy();
      return;
    }
    this.#connections.add(socket);
    socket.on("close", () => this.#connections.delete(socket));
    socket.setTimeout(DNS_TCP_IDLE_MS, () => socket.destroy());
    let pending: Buffer = Buffer.alloc(0);
    // Above the rate no more is read from whoever asks: the kernel's buffers push back.
    const goOn = (): void => {
      if (!socket.destroyed && answerPending()) releaseReads(socket);
    };
    /** False: it is not to be read, now or ever. */
    const answerPending = (): boolean => {
      while (pending.length >= 2) {
        const length = pending.readUInt16BE(0);
        // A client that does not read its answers is not worth keeping.
        if (length > DNS_MESSAGE_BYTES || socket.writableLength > 65_536) {
          socket.destroy();
          return false;
        }
        if (pending.length < 2 + length) return true;
        if (this.#rate.waitMs > 0) {
          this.#onLimit("dnsQueriesPerSecond");
          holdReads(socket);
          setTimeout(goOn, DNS_TCP_PAUSE_MS).unref();
          return false;
        }
        const answer = this.answer(pending.subarray(2, 2 + length));
        pending = pending.subarray(2 + length);
        if (answer === undefined) continue;
        const size = Buffer.alloc(2);
        size.writeUInt16BE(answer.length);
        socket.write(Buffer.concat([size, answer]));
      }
      return true;
    };
    socket.on("data", (chunk: Buffer) => {
      pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk]);
      if (this.#share.ready()) answerPending();
      else {
        holdReads(socket);
        this.#share.later(goOn);
      }
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer);
    this.#waiting.length = 0;
    for (const socket of this.#connections) socket.destroy();
    await Promise.all([
      new Promise<void>((resolve) => (this.#udp === undefined ? resolve() : this.#udp.close(resolve))),
      new Promise<void>((resolve) => (this.#tcp === undefined ? resolve() : this.#tcp.close(() => resolve()))),
    ]);
    this.#udp = undefined;
    this.#tcp = undefined;
  }
}

/** Rejects when the descriptor is unusable. Later errors are those of single datagrams and connections (the asker is gone). */
function started(socket: UdpSocket | Server, start: (done: () => void) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    socket.once("error", reject);
    start(() => {
      socket.off("error", reject);
      socket.on("error", () => undefined);
      resolve();
    });
  });
}

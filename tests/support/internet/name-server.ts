import type dgram from "node:dgram";
import type net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { NAME_SERVER, plainAddress } from "./addresses.ts";
import {
  encodeAnswer,
  encodeIpv4,
  encodeIpv6,
  encodeName,
  encodeText,
  parseQuery,
  type Question,
  type ResourceRecord,
  type ResponseCode,
  TYPES,
} from "./dns-message.ts";
import { HostNamespace } from "./namespace.ts";

/** What a name answers. A type that is absent has an empty answer (NODATA). */
export interface NameRecords {
  readonly A?: readonly string[];
  readonly AAAA?: readonly string[];
  /** Followed through the zone, as a recursive resolver would. */
  readonly CNAME?: string;
  readonly TXT?: readonly string[];
  /** Seconds, default 0: a test's change holds at once. */
  readonly ttl?: number;
  /** In place of an answer. */
  readonly code?: ResponseCode;
  readonly delayMs?: number;
  /** No reply at all. */
  readonly drop?: boolean;
}

/** Fixed records, or a function of the question's type and how often that name and type were asked before. */
export type Answers = NameRecords | ((type: string, asked: number) => NameRecords);

export interface ReceivedQuery {
  readonly name: string;
  /** "A", "AAAA", …, or the number of another type. */
  readonly type: string;
  readonly transport: "udp" | "tcp";
  readonly remoteAddress: string;
}

const PORT = 53;
/** RFC 1035 §2.3.4: UDP answers without EDNS. */
const PLAIN_UDP_BYTES = 512;
const MAX_CNAMES = 16;
const TYPE_NAMES = new Map<number, string>(Object.entries(TYPES).map(([name, value]) => [value, name]));

/** The name server of a test internet, UDP and TCP. Its zone can change at any time. */
export class TestNameServer implements AsyncDisposable {
  readonly addresses = NAME_SERVER;
  /** For the gateway's `resolvers` setting. */
  readonly resolvers: readonly string[] = [`${NAME_SERVER.ipv4}:${PORT}`];
  readonly resolversIpv6: readonly string[] = [`[${NAME_SERVER.ipv6}]:${PORT}`];
  readonly #zone = new Map<string, Answers>();
  readonly #asked = new Map<string, number>();
  #queries: ReceivedQuery[] = [];
  readonly #namespace: HostNamespace;
  readonly #udp: dgram.Socket;
  readonly #tcp: net.Server;
  readonly #connections = new Set<net.Socket>();

  private constructor(namespace: HostNamespace, udp: dgram.Socket, tcp: net.Server) {
    this.#namespace = namespace;
    this.#udp = udp;
    this.#tcp = tcp;
    udp.on("message", (message, peer) => {
      const limit = (question: Question) => Math.max(PLAIN_UDP_BYTES, question.ednsSize ?? 0);
      void this.#answer(message, "udp", peer.address, limit).then((reply) => {
        // The asker may be gone, and this socket with the test.
        if (reply !== undefined) udp.send(reply, peer.port, peer.address, () => {});
      });
    });
    tcp.on("connection", (socket) => this.#serveTcp(socket));
  }

  static async create(): Promise<TestNameServer> {
    const namespace = await HostNamespace.create("osdns", [NAME_SERVER.ipv4, NAME_SERVER.ipv6]);
    try {
      return new TestNameServer(namespace, await namespace.openUdp(PORT), await namespace.openTcp(PORT));
    } catch (error) {
      await namespace[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Sets what `name` answers from now on. `*.parent` answers for every name below `parent` that has no own entry. */
  set(name: string, answers: Answers): void {
    this.#zone.set(name.toLowerCase(), answers);
  }

  /** The n-th question of each type gets the n-th entry; the last one stays. What rebinding attacks do. */
  setSequence(name: string, sequence: readonly NameRecords[]): void {
    for (const type of TYPE_NAMES.values()) this.#asked.delete(`${name.toLowerCase()} ${type}`);
    this.set(name, (_type, asked) => sequence[Math.min(asked, sequence.length - 1)] ?? {});
  }

  delete(name: string): void {
    this.#zone.delete(name.toLowerCase());
  }

  /** Every question that arrived, in order. */
  queries(name?: string): readonly ReceivedQuery[] {
    return this.#queries.filter((query) => name === undefined || query.name === name.toLowerCase());
  }

  clearQueries(): void {
    this.#queries = [];
  }

  /** Number of packets of any kind that reached the name server's namespace. */
  get namespace(): HostNamespace {
    return this.#namespace;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#connections) socket.destroy();
    this.#udp.close();
    this.#tcp.close();
    await this.#namespace[Symbol.asyncDispose]();
  }

  #serveTcp(socket: net.Socket): void {
    this.#connections.add(socket);
    socket.on("close", () => this.#connections.delete(socket)).on("error", () => {});
    const from = socket.remoteAddress ?? "";
    let input = Buffer.alloc(0);
    socket.on("data", (chunk: Buffer) => {
      input = Buffer.concat([input, chunk]);
      while (input.length >= 2 && input.length >= 2 + input.readUInt16BE(0)) {
        const end = 2 + input.readUInt16BE(0);
        const message = input.subarray(2, end);
        input = input.subarray(end);
        void this.#answer(message, "tcp", from, () => 65_535).then((reply) => {
          if (reply === undefined) return socket.destroy();
          const length = Buffer.alloc(2);
          length.writeUInt16BE(reply.length);
          return socket.write(Buffer.concat([length, reply]));
        });
      }
    });
  }

  async #answer(
    message: Buffer,
    transport: "udp" | "tcp",
    from: string,
    limit: (question: Question) => number,
  ): Promise<Buffer | undefined> {
    let question: Question;
    try {
      question = parseQuery(message);
    } catch {
      return undefined;
    }
    const type = TYPE_NAMES.get(question.type) ?? String(question.type);
    this.#queries.push({ name: question.name, type, transport, remoteAddress: plainAddress(from) });
    const answers: ResourceRecord[] = [];
    let name = question.name;
    for (let hops = 0; hops <= MAX_CNAMES; hops++) {
      const records = this.#lookUp(name, type);
      if (records?.delayMs) await sleep(records.delayMs);
      if (records?.drop) return undefined;
      if (records === undefined || records.code) {
        // A CNAME into nothing keeps the CNAME in the answer (RFC 2308 §2.1).
        return encodeAnswer(question, records?.code ?? "NXDOMAIN", answers, limit(question));
      }
      const ttl = records.ttl ?? 0;
      if (records.CNAME !== undefined) {
        answers.push({ name, type: TYPES.CNAME, ttl, data: encodeName(records.CNAME) });
        if (type === "CNAME") break;
        name = records.CNAME.toLowerCase();
        continue;
      }
      const add = (code: number, data: readonly Buffer[]) => {
        if (question.type === code) answers.push(...data.map((bytes) => ({ name, type: code, ttl, data: bytes })));
      };
      add(TYPES.A, (records.A ?? []).map(encodeIpv4));
      add(TYPES.AAAA, (records.AAAA ?? []).map(encodeIpv6));
      add(TYPES.TXT, (records.TXT ?? []).map(encodeText));
      break;
    }
    return encodeAnswer(question, "NOERROR", answers, limit(question));
  }

  #lookUp(name: string, type: string): NameRecords | undefined {
    const answers = this.#zone.get(name) ?? this.#zone.get(`*.${name.slice(name.indexOf(".") + 1)}`);
    if (typeof answers !== "function") return answers;
    const key = `${name} ${type}`;
    const asked = this.#asked.get(key) ?? 0;
    this.#asked.set(key, asked + 1);
    return answers(type, asked);
  }
}

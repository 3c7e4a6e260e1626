import { RuntimeError } from "@openshell/base";
import { SHARED_NAMES, STATE_BYTES, SYNTHETIC_BASE, SYNTHETIC_SIZE } from "../limits.ts";

/**
 * Names and their synthetic addresses. A name that the policy mentions keeps its address for the sandbox's life, so that
 * a client's cache can never point at another host; the other names share a small pool, reused oldest first.
 */
export class NameTable {
  readonly #mentioned: (name: string) => boolean;
  readonly #limit: number;
  /** name → offset, in order of last use for shared ones. */
  readonly #kept = new Map<string, number>();
  readonly #shared = new Map<string, number>();
  readonly #names = new Map<number, string>();
  /** Kept addresses grow from here; the offsets below belong to the shared pool. Offset 0 is not handed out. */
  #nextKept = SHARED_NAMES + 1;
  #nextShared = 1;
  /** Called after a name got an address. */
  onChange: (() => void) | undefined;

  /** `limit` counts all names, the shared pool included. */
  constructor(mentioned: (name: string) => boolean, limit: number) {
    this.#mentioned = mentioned;
    this.#limit = limit;
  }

  get size(): number {
    return this.#names.size;
  }

  /** IPv4 address as a number; undefined when no kept address is left. */
  addressOf(name: string): number | undefined {
    const kept = this.#kept.get(name);
    if (kept !== undefined) return SYNTHETIC_BASE + kept;
    if (this.#mentioned(name)) return this.#keep(name);
    const shared = this.#shared.get(name);
    if (shared !== undefined) {
      this.#shared.delete(name);
      this.#shared.set(name, shared);
      return SYNTHETIC_BASE + shared;
    }
    return SYNTHETIC_BASE + this.#share(name);
  }

  /** The name behind a synthetic address; undefined when it stands for none (any more). */
  nameOf(address: number): string | undefined {
    return this.#names.get(address - SYNTHETIC_BASE);
  }

  #keep(name: string): number | undefined {
    if (this.#kept.size >= Math.max(1, this.#limit - SHARED_NAMES) || this.#nextKept >= SYNTHETIC_SIZE - 1)
      return undefined;
    // An address that the name had as a shared one goes on meaning it until it is reused.
    const offset = this.#nextKept++;
    this.#kept.set(name, offset);
    this.#names.set(offset, name);
    this.onChange?.();
    return SYNTHETIC_BASE + offset;
  }

  #share(name: string): number {
    let offset: number;
    if (this.#nextShared <= Math.min(SHARED_NAMES, this.#limit)) offset = this.#nextShared++;
    else {
      const [oldest] = this.#shared;
      const [oldName, oldOffset] = oldest!;
      this.#shared.delete(oldName);
      offset = oldOffset;
    }
    this.#shared.set(name, offset);
    this.#names.set(offset, name);
    this.onChange?.();
    return offset;
  }

  /** ≤ 256 KiB. Shared names go first when it would not fit: losing one costs a refused connection, never a wrong one. */
  export(): Uint8Array {
    const entry = ([name, offset]: readonly [string, number]): string => `${offset} ${name}\n`;
    const header = `1 ${this.#nextKept} ${this.#nextShared}\n`;
    let text = header;
    const lines = [...[...this.#kept].map(entry), ...[...this.#shared].reverse().map(entry)];
    for (const line of lines) {
      if (text.length + line.length > STATE_BYTES) break;
      text += line;
    }
    return Buffer.from(text, "latin1");
  }

  /** Takes over a predecessor's table. Throws `state_invalid`, leaving this one empty, when it is not one. */
  import(state: Uint8Array): void {
    if (state.length === 0) return;
    const lines = Buffer.from(state).toString("latin1").split("\n");
    const header = /^1 (\d{1,6}) (\d{1,6})$/.exec(lines[0]!);
    const shared: [string, number][] = [];
    const kept: [string, number][] = [];
    let valid = header !== null && lines.at(-1) === "";
    for (const line of lines.slice(1, -1)) {
      const match = /^(\d{1,6}) ([\x21-\x7e]{1,254})$/.exec(line);
      const offset = Number(match?.[1]);
      if (match === null || offset < 1 || offset >= SYNTHETIC_SIZE) {
        valid = false;
        break;
      }
      (offset <= SHARED_NAMES ? shared : kept).push([match[2]!, offset]);
    }
    if (!valid) {
      throw new RuntimeError("state_invalid", "The saved name table cannot be read", {
        next: "Names resolve anew; restart clients that keep addresses.",
      });
    }
    this.#nextKept = Math.max(Number(header![1]), SHARED_NAMES + 1, ...kept.map(([, offset]) => offset + 1));
    for (const [name, offset] of kept) {
      this.#kept.set(name, offset);
      this.#names.set(offset, name);
    }
    for (const [name, offset] of shared.reverse()) {
      this.#shared.set(name, offset);
      this.#names.set(offset, name);
    }
    // Offsets that did not fit into the state are never handed out under another name before the pool wraps.
    this.#nextShared = Math.max(Number(header![2]), 1, ...shared.map(([, offset]) => offset + 1));
  }
}

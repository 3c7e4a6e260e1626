import { CliError } from "../errors.ts";
import { RpcError } from "../transport/rpc-error.ts";

/** Output is remembered so far, to find the place where a new attachment goes on. Hosts keep 1 MiB. */
const REMEMBERED_BYTES = 512 * 1024;
/** A lost attachment is tried again for so long. Milliseconds. */
export const REATTACH_LIMIT_MS = 60_000;
const FIRST_WAIT_MS = 50;
const LAST_WAIT_MS = 1_000;

/** The attachment is lost for good, and the command goes on without us. */
export class LostError extends CliError {
  constructor(message: string, next = "") {
    super(message, { code: "attachment_lost", next: next === "" ? [] : next });
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof CliError && (value as { lost?: unknown }).lost === true;
  }

  readonly lost = true;
}

/**
 * What is needed to go on after an attachment was lost (the gateway was replaced, its host ended): a new one repeats the
 * output from its beginning, so what was written already is compared and left out. Nothing is written twice or left out:
 * where that cannot be told, the attachment is given up.
 */
export class Resume {
  readonly #tty: boolean;
  #remembered: Buffer[] = [];
  #received = 0;
  #complete = true;
  #sentInput = false;
  /** Bytes of a repetition that are still to be compared; undefined when there is none. */
  #repeated: { readonly bytes: Buffer; at: number } | undefined;
  #lostAt = 0;
  #waitMs = FIRST_WAIT_MS;

  constructor(tty: boolean) {
    this.#tty = tty;
  }

  /** Input is on its way: without a terminal nobody can tell how much of it arrived. */
  sentInput(): void {
    this.#sentInput = true;
  }

  /** The part of the output that was not written before. Throws {@link LostError} when this is other output. */
  take(data: Uint8Array): Uint8Array {
    this.#lostAt = 0;
    this.#waitMs = FIRST_WAIT_MS;
    const fresh = this.#skipRepeated(data);
    this.#received += fresh.length;
    if (this.#complete && this.#received <= REMEMBERED_BYTES) this.#remembered.push(Buffer.from(fresh));
    else this.#forget();
    return fresh;
  }

  /**
   * Whether to attach again after this failure, and after how many milliseconds; undefined when it is no loss of the
   * attachment. Throws {@link LostError} when it is one that cannot be made good.
   */
  retryAfter(error: unknown, now: number = performance.now()): number | undefined {
    if (!(error instanceof RpcError) || error.code !== "unavailable") return undefined;
    if (!this.#tty && (this.#sentInput || !this.#complete))
      throw this.#lost("its output and input cannot be continued exactly");
    if (this.#lostAt === 0) this.#lostAt = now;
    if (now - this.#lostAt > REATTACH_LIMIT_MS)
      throw this.#lost(`no gateway let us attach again within ${REATTACH_LIMIT_MS / 1000} s`);
    this.#repeated =
      this.#complete && this.#received > 0 ? { bytes: Buffer.concat(this.#remembered), at: 0 } : undefined;
    const wait = this.#waitMs;
    this.#waitMs = Math.min(LAST_WAIT_MS, wait * 2);
    return wait;
  }

  #skipRepeated(data: Uint8Array): Uint8Array {
    const repeated = this.#repeated;
    if (repeated === undefined) return data;
    const length = Math.min(data.length, repeated.bytes.length - repeated.at);
    const same = repeated.bytes.subarray(repeated.at, repeated.at + length).equals(data.subarray(0, length));
    if (!same) {
      // Another supervisor's record begins later. A terminal is redrawn by what is inside; a pipe would get a gap.
      if (!this.#tty) throw this.#lost("some of its output was lost with the supervisor");
      this.#repeated = undefined;
      return data;
    }
    repeated.at += length;
    if (repeated.at === repeated.bytes.length) this.#repeated = undefined;
    return data.subarray(length);
  }

  #forget(): void {
    this.#complete = false;
    this.#remembered = [];
  }

  #lost(why: string): LostError {
    return new LostError(`the connection to the command was lost, and ${why}. The command goes on in its sandbox`);
  }
}

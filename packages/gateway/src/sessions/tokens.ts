import { createHash, randomBytes } from "node:crypto";
import type { Clock } from "@openshell/base";
import { TOKEN_LIFETIME_MS } from "./limits.ts";

/** What a sandbox token proves: its bearer speaks for this sandbox, in this generation, as the holder of this epoch. */
export interface TokenClaims {
  readonly sandboxId: string;
  readonly generation: bigint;
  /** Grows with each assignment of the sandbox to a host; only the newest is honoured. */
  readonly epoch: bigint;
  readonly hostId: string;
  /** Monotonic: a wall clock that is set makes no token good for longer, and none useless. */
  readonly expiresMs: number;
}

export interface IssuedToken {
  readonly token: string;
  readonly claims: TokenClaims;
}

/**
 * The tokens this gateway process gave to hosts. Only hashes are kept. A restarted gateway knows none: each host gets new
 * ones when it reconnects, before its supervisors do.
 */
export class TokenTable {
  readonly #clock: Clock;
  readonly #byHash = new Map<string, TokenClaims>();
  readonly #current = new Map<string, { readonly epoch: bigint; readonly hashes: readonly string[] }>();
  #lastEpoch = 0n;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Assigns the sandbox to a host: a new epoch, which ends every older token of the sandbox. Epochs follow the wall clock
   * in milliseconds and always grow inside one process, so that a later gateway's epochs are higher too.
   */
  assign(sandboxId: string, generation: bigint, hostId: string): IssuedToken {
    const now = BigInt(Math.trunc(this.#clock.now()));
    this.#lastEpoch = now > this.#lastEpoch ? now : this.#lastEpoch + 1n;
    this.revoke(sandboxId);
    return this.#issue(sandboxId, generation, this.#lastEpoch, hostId, []);
  }

  /** A further token of the current epoch; the one before stays good until it expires. Undefined when nothing is assigned. */
  renew(sandboxId: string): IssuedToken | undefined {
    const current = this.#current.get(sandboxId);
    const newest = current?.hashes.at(-1);
    const claims = newest === undefined ? undefined : this.#byHash.get(newest);
    if (current === undefined || newest === undefined || claims === undefined) return undefined;
    for (const hash of current.hashes.slice(0, -1)) this.#byHash.delete(hash);
    return this.#issue(sandboxId, claims.generation, current.epoch, claims.hostId, [newest]);
  }

  /** The claims of a token that is known, current and not expired. */
  verify(token: string): TokenClaims | undefined {
    const claims = this.#byHash.get(digest(token));
    if (claims === undefined || claims.expiresMs <= this.#clock.monotonic()) return undefined;
    return this.#current.get(claims.sandboxId)?.epoch === claims.epoch ? claims : undefined;
  }

  /** The newest claims for a sandbox, whether expired or not. */
  assignment(sandboxId: string): TokenClaims | undefined {
    const newest = this.#current.get(sandboxId)?.hashes.at(-1);
    return newest === undefined ? undefined : this.#byHash.get(newest);
  }

  /** Ends every token of the sandbox. */
  revoke(sandboxId: string): void {
    for (const hash of this.#current.get(sandboxId)?.hashes ?? []) this.#byHash.delete(hash);
    this.#current.delete(sandboxId);
  }

  #issue(sandboxId: string, generation: bigint, epoch: bigint, hostId: string, kept: readonly string[]): IssuedToken {
    const token = randomBytes(32).toString("base64url");
    const claims = { sandboxId, generation, epoch, hostId, expiresMs: this.#clock.monotonic() + TOKEN_LIFETIME_MS };
    const hash = digest(token);
    this.#byHash.set(hash, claims);
    this.#current.set(sandboxId, { epoch, hashes: [...kept, hash] });
    return { token, claims };
  }
}

/** Tokens have 256 random bits: a lookup by hash tells an attacker nothing, so no constant-time comparison is needed. */
function digest(token: string): string {
  return createHash("sha256").update(token).digest("base64");
}

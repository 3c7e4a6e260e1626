import { closeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "@openshell/base";
import type { ExecutableKey, SocketOwner, SocketPair } from "@openshell/boundary";
import type { ProcessIdentity } from "@openshell/policy/decision.ts";
import type { ExecutableHasher } from "./hash.ts";
import { CTIME_SETTLED_MS, IDENTIFY_PAUSES_MS, MAX_HASHED_BYTES, MAX_IDENTITIES } from "./limits.ts";

/** Who holds the agent's end of a connection. */
export type Identification =
  | { readonly known: true; readonly owners: readonly Owner[] }
  /** Unknown means denied. */
  | { readonly known: false; readonly reason: string };

export interface Owner {
  readonly pid: number;
  readonly process: ProcessIdentity;
  /** SHA-256 of the executable. */
  readonly digest: string;
}

export interface IdentifierDeps {
  readonly identify: (pair: SocketPair) => Promise<readonly SocketOwner[]>;
  readonly hasher: ExecutableHasher;
  /** Wall clock, milliseconds; compared with file times. */
  readonly now: () => number;
  readonly closeFd?: (fd: number) => void;
  /** The sandbox's turn; undefined: it is now. Each lookup is work that the sandbox causes. */
  readonly turn?: () => Promise<void> | undefined;
}

/**
 * Turns a socket pair into process identities, with the digest of each executable pinned at its first use: a program
 * that is replaced under the same path later is refused. One object a sandbox generation; digests are remembered by file
 * identity and nanosecond times, and not at all while the file may still be changing.
 */
export class Identifier {
  readonly #deps: IdentifierDeps;
  readonly #digests = new Map<string, string>();
  /** First digest seen for each path. */
  readonly #pinned = new Map<string, string>();
  /** One executable at a time: hashing is bounded work for a sandbox. */
  #queue: Promise<unknown> = Promise.resolve();

  constructor(deps: IdentifierDeps) {
    this.#deps = deps;
  }

  async identify(pair: SocketPair): Promise<Identification> {
    let found: readonly SocketOwner[] = [];
    try {
      // The lookup has a few milliseconds; on a busy machine they may pass while it is not even running.
      for (const pause of IDENTIFY_PAUSES_MS) {
        if (pause > 0) await sleep(pause);
        const turn = this.#deps.turn?.();
        if (turn !== undefined) await turn;
        found = await this.#deps.identify(pair);
        if (found.length > 0) break;
      }
    } catch (error) {
      const cause = error instanceof RuntimeError ? error.code : "unexpected";
      return { known: false, reason: `failed to resolve peer binary: the lookup failed (${cause})` };
    }
    const open = new Set(found.flatMap((owner) => (owner.exeFd === undefined ? [] : [owner.exeFd])));
    try {
      if (found.length === 0)
        return { known: false, reason: "failed to resolve peer binary: no process holds the socket" };
      const owners: Owner[] = [];
      for (const owner of found) {
        const digest = await this.#digest(owner);
        if (digest === undefined) {
          return {
            known: false,
            reason: `failed to resolve peer binary for PID ${owner.pid}: the executable cannot be read`,
          };
        }
        const pinned = this.#pinned.get(owner.exe);
        if (pinned === undefined) this.#remember(this.#pinned, owner.exe, digest);
        else if (pinned !== digest) {
          return { known: false, reason: `binary integrity check failed: the executable changed since its first use` };
        }
        const process: ProcessIdentity = { exe: owner.exe, ancestors: owner.ancestors.map((ancestor) => ancestor.exe) };
        owners.push({ pid: owner.pid, process, digest });
      }
      return { known: true, owners };
    } finally {
      for (const fd of open) this.#close(fd);
    }
  }

  async #digest(owner: SocketOwner): Promise<string | undefined> {
    const { exeFd, exeKey } = owner;
    if (exeFd === undefined || exeKey === undefined) return undefined;
    if (exeKey.size > BigInt(MAX_HASHED_BYTES)) return undefined;
    const key = cacheKey(exeKey);
    const known = this.#digests.get(key);
    if (known !== undefined) return known;
    const job = this.#queue.then(() => this.#deps.hasher.hash(exeFd, Number(exeKey.size)));
    this.#queue = job.catch(() => undefined);
    try {
      const digest = await job;
      const age = this.#deps.now() - Number(exeKey.ctimeNs / 1_000_000n);
      if (age >= CTIME_SETTLED_MS) this.#remember(this.#digests, key, digest);
      return digest;
    } catch {
      return undefined;
    }
  }

  #remember(map: Map<string, string>, key: string, value: string): void {
    // Pins are never dropped silently: a full table keeps what it has, and later executables are hashed each time.
    if (map.size < MAX_IDENTITIES) map.set(key, value);
  }

  #close(fd: number): void {
    (this.#deps.closeFd ?? closeSync)(fd);
  }
}

function cacheKey(key: ExecutableKey): string {
  return `${key.dev}:${key.ino}:${key.size}:${key.mtimeNs}:${key.ctimeNs}`;
}

/** Same processes, same executables: nothing to decide anew. */
export function sameOwners(a: readonly Owner[], b: readonly Owner[]): boolean {
  return (
    a.length === b.length &&
    a.every((owner, index) => {
      const other = b[index]!;
      return (
        owner.pid === other.pid &&
        owner.digest === other.digest &&
        owner.process.exe === other.process.exe &&
        owner.process.ancestors.join("\0") === other.process.ancestors.join("\0")
      );
    })
  );
}

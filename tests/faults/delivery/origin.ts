import type { TestInternet } from "../../support/internet/index.ts";

/** What requests from sandboxes told: which policy let them through, and whose credential of which generation they had. */

/** Policy versions are told apart by path, modulo this. */
export const PATHS = 4;
export const HOSTS = ["flip-a.example-allowed.com", "flip-b.example-allowed.com"] as const;
/** Only policies that were refused allow it. */
export const REFUSED_HOST = "refused.example-allowed.com";

export interface Arrival {
  /** Version of the policy, modulo `PATHS`; -1: what only a refused one allows. */
  readonly path: number;
  /** Of the credential; undefined: it was none of the provider's. */
  readonly serial: number | undefined;
  /** Not begun before; wall clock, milliseconds. */
  readonly startedAt: number;
  readonly arrivedAt: number;
}

export class Origin {
  readonly #arrivals = new Map<string, Arrival[]>();

  /** Of one sandbox of the run with that salt, in order. */
  of(salt: string, sandbox: string): readonly Arrival[] {
    return this.#arrivals.get(`${salt} ${sandbox}`) ?? [];
  }

  static async start(net: TestInternet): Promise<Origin> {
    const origin = new Origin();
    await net.host(HOSTS[0], {
      names: [HOSTS[1], REFUSED_HOST],
      services: [
        {
          kind: "https",
          port: 443,
          handler: (request, response) => {
            const { salt = "", box = "", started = "0", authorization = "", host = "" } = request.headers;
            const found = /^Bearer sk-[0-9a-f]{16}-own-[0-9]+-([0-9]+)-e$/.exec(authorization);
            const version = /^\/v([0-9]+)/.exec(request.url ?? "")?.[1];
            const key = `${salt} ${box}`;
            const list = origin.#arrivals.get(key) ?? [];
            origin.#arrivals.set(key, list);
            list.push({
              path: host.startsWith(REFUSED_HOST) || version === undefined ? -1 : Number(version),
              serial: found === null ? undefined : Number(found[1]),
              startedAt: Number(started),
              arrivedAt: Date.now(),
            });
            response.end("ok");
          },
        },
      ],
    });
    return origin;
  }
}

/** One change, as the client who made it knows it. Wall clock, milliseconds. */
export interface Change {
  readonly kind: "policy" | "credential";
  /** Version of the policy from 0 on, or serial number of the credential. */
  readonly value: number;
  readonly sentAt: number;
  /** When it was known to be in force. */
  acknowledgedAt?: number;
}

/**
 * What is wrong with the arrivals from one sandbox whose changes were made one after the other: each must have been
 * allowed by one of the states that the store was in, none before its change was sent, none older than what was acknowledged
 * before it began, and none older than the one before it.
 */
export function violations(changes: readonly Change[], arrivals: readonly Arrival[]): readonly string[] {
  const states = [{ policy: 0, serial: 0, sentAt: 0, acknowledgedAt: undefined as number | undefined }];
  for (const { kind, value, sentAt, acknowledgedAt } of changes) {
    const { policy, serial } = states.at(-1)!;
    const state = kind === "policy" ? { policy: value, serial } : { policy, serial: value };
    states.push({ ...state, sentAt, acknowledgedAt });
  }
  const found: string[] = [];
  let reached = 0;
  for (const { path, serial, startedAt, arrivedAt } of arrivals) {
    const what = `policy ≡ ${path} (mod ${PATHS}) with credential ${serial ?? "of nobody"} at ${arrivedAt}`;
    const acknowledged = states.findLastIndex(({ acknowledgedAt = Infinity }) => acknowledgedAt < startedAt);
    const from = Math.max(reached, acknowledged);
    const matches = (state: (typeof states)[number]): boolean =>
      state.policy % PATHS === path && state.serial === serial && state.sentAt <= arrivedAt;
    const at = states.findIndex((state, index) => index >= from && matches(state));
    if (at >= 0) {
      reached = at;
      continue;
    }
    const earlier = states.findLastIndex(matches);
    const cause =
      earlier < 0
        ? "never was a state of the store"
        : `is state ${earlier}, after state ${from} was ${acknowledged > reached ? "acknowledged" : "seen"}`;
    found.push(`${what} ${cause}`);
  }
  return found;
}

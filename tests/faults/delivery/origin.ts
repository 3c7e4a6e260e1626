import type { TestInternet } from "../../support/internet/index.ts";

/** The server that sandboxes ask: notes which policy let a request through, and whose credential of which generation it had. */

export const HOST = "flip.example-allowed.com";
/** Every policy allows it; its answer says what to ask next. */
export const PACE = "/pace";
/** Only policies that were refused allow it. */
export const REFUSED = "/refused";
/** Only that version of the policy allows it. */
export const pathOf = (version: number): string => `/v${version}`;
/** Serial number of the credential in environments that were refused. */
export const REFUSED_SERIAL = 999_999;

/** Between two rounds while nothing is expected, and while a change is on its way. Milliseconds. */
const IDLE_MS = 30;
const PENDING_MS = 10;
/** So often a round asks for what must never pass, and for what was replaced, while nothing happens. */
const EVERY = 8;

export interface Arrival {
  /** Version of the policy; undefined: one that every policy allows; -1: one that only a refused policy allows. */
  readonly version: number | undefined;
  /** Of the credential; undefined: it was none of the provider's. */
  readonly serial: number | undefined;
  /** Not begun before; wall clock, milliseconds. */
  readonly startedAt: number;
  readonly arrivedAt: number;
}

interface Watched {
  readonly arrivals: Arrival[];
  /** Versions of the policy: the newest that passed, and the newest that was sent. */
  seen: number;
  newest: number;
  rounds: number;
  /** Monotonic. Milliseconds. */
  hurriesUntil: number;
  /** Answers the request for `PACE` that waits. */
  release: () => void;
}

export class Origin {
  readonly #watched = new Map<string, Watched>();

  /** What came from one sandbox of the run with that salt, in order. */
  of(salt: string, sandbox: string): readonly Arrival[] {
    return this.#watch(salt, sandbox).arrivals;
  }

  /** That version of the policy may pass from now on. */
  expect(salt: string, sandbox: string, version: number): void {
    this.#watch(salt, sandbox).newest = version;
  }

  /** Lets the sandbox ask without a pause for so long, in place of what was said before. Milliseconds. */
  hurry(salt: string, sandbox: string, forMs: number): void {
    const watched = this.#watch(salt, sandbox);
    watched.hurriesUntil = performance.now() + forMs;
    watched.release();
  }

  static async start(net: TestInternet): Promise<Origin> {
    const origin = new Origin();
    await net.host(HOST, {
      services: [
        {
          kind: "https",
          port: 443,
          handler: (request, response) => {
            const { salt = "", box = "", started = "0", authorization = "" } = request.headers;
            const watched = origin.#watch(String(salt), String(box));
            const found = /^Bearer sk-[0-9a-f]{16}-own-[0-9]+-([0-9]+)-e$/.exec(authorization);
            const version = versionOf(request.url ?? "");
            if (version !== undefined) watched.seen = Math.max(watched.seen, version);
            watched.arrivals.push({
              version,
              serial: found === null ? undefined : Number(found[1]),
              startedAt: Number(started),
              arrivedAt: Date.now(),
            });
            if (version !== undefined) response.end("ok");
            else pace(watched, (text) => response.end(text));
          },
        },
      ],
    });
    return origin;
  }

  #watch(salt: string, sandbox: string): Watched {
    const key = `${salt} ${sandbox}`;
    let watched = this.#watched.get(key);
    if (watched === undefined) {
      watched = { arrivals: [], seen: 0, newest: 0, rounds: 0, hurriesUntil: 0, release: () => {} };
      this.#watched.set(key, watched);
    }
    return watched;
  }
}

function versionOf(path: string): number | undefined {
  if (path === PACE) return undefined;
  const version = /^\/v([0-9]+)$/.exec(path)?.[1];
  return version === undefined ? -1 : Number(version);
}

function pace(watched: Watched, answer: (text: string) => void): void {
  const send = (): void => {
    clearTimeout(timer);
    watched.release = () => {};
    answer(next(watched));
  };
  const pauseMs = hurries(watched) ? 0 : watched.newest > watched.seen ? PENDING_MS : IDLE_MS;
  const timer = setTimeout(send, pauseMs);
  watched.release = send;
  if (pauseMs === 0) send();
}

const hurries = ({ hurriesUntil }: Watched): boolean => performance.now() < hurriesUntil;

/** What may be in force, and now and then what must not be. */
function next(watched: Watched): string {
  const { seen, newest } = watched;
  const versions = Array.from({ length: newest - seen + 1 }, (_, at) => newest - at);
  const also = watched.rounds++ % EVERY === 0 ? [REFUSED, pathOf(seen - 1)] : [];
  return [...versions.map(pathOf), ...also].join(" ");
}

/** In a report: what was seen, and how often in a row. */
export function sightings(arrivals: readonly Arrival[]): string {
  const shown: { readonly what: string; readonly from: Arrival; to: Arrival; count: number }[] = [];
  for (const arrival of arrivals) {
    if (arrival.version === undefined) continue;
    const what = `policy ${arrival.version} with credential ${arrival.serial ?? "of nobody"}`;
    const last = shown.at(-1);
    if (last?.what === what) Object.assign(last, { to: arrival, count: last.count + 1 });
    else shown.push({ what, from: arrival, to: arrival, count: 1 });
  }
  return shown.map(({ what, from, to, count }) => `${what} ×${count} (${from.arrivedAt}–${to.arrivedAt})`).join(", ");
}

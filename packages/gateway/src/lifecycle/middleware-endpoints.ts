import { lookup } from "node:dns/promises";
import { formatAddress } from "../config/config.ts";
import { deniedEndpoint, type MiddlewareRegistration } from "../config/middleware.ts";

/** How often names are resolved again. Milliseconds. */
const REFRESH_MS = 60_000;
/** What a start waits for names at most. Milliseconds. */
const FIRST_MS = 2_000;
/** Addresses of one name that are listed. */
const ADDRESSES = 32;

type Lookup = (name: string) => Promise<readonly string[]>;

/**
 * Where registered middleware services listen, for the list of what no sandbox may reach: addresses as they are, names
 * as such and with every address that they have. A name that does not resolve is denied by name alone.
 */
export class MiddlewareEndpoints implements Disposable {
  readonly #endpoints: readonly { readonly host: string; readonly port: number; readonly literal: boolean }[];
  readonly #lookup: Lookup;
  readonly #resolved = new Map<string, readonly string[]>();
  #timer: NodeJS.Timeout | undefined;

  private constructor(services: readonly Pick<MiddlewareRegistration, "endpoint">[], lookupName: Lookup) {
    this.#endpoints = services.map(deniedEndpoint);
    this.#lookup = lookupName;
  }

  static async open(
    services: readonly Pick<MiddlewareRegistration, "endpoint">[],
    lookupName: Lookup = everyAddress,
  ): Promise<MiddlewareEndpoints> {
    const endpoints = new MiddlewareEndpoints(services, lookupName);
    if (endpoints.#endpoints.every(({ literal }) => literal)) return endpoints;
    let late: NodeJS.Timeout | undefined;
    const limit = new Promise<void>((resolve) => {
      late = setTimeout(resolve, FIRST_MS);
    });
    await Promise.race([endpoints.refresh(), limit]);
    clearTimeout(late);
    endpoints.#timer = setInterval(() => void endpoints.refresh(), REFRESH_MS).unref();
    return endpoints;
  }

  /** `IP:port` and `name:port`. */
  get denied(): readonly string[] {
    return this.#endpoints.flatMap(({ host, port, literal }) => [
      formatAddress({ host, port }),
      ...(literal ? [] : (this.#resolved.get(host) ?? []).map((address) => formatAddress({ host: address, port }))),
    ]);
  }

  /** Resolves the names again; those that fail keep what they had. Never rejects. */
  async refresh(): Promise<void> {
    const names = new Set(this.#endpoints.filter(({ literal }) => !literal).map(({ host }) => host));
    const found = [...names].map(async (name) => {
      const addresses = await this.#lookup(name).catch(() => undefined);
      if (addresses !== undefined) this.#resolved.set(name, addresses.slice(0, ADDRESSES));
    });
    await Promise.all(found);
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}

async function everyAddress(name: string): Promise<readonly string[]> {
  return (await lookup(name, { all: true })).map(({ address }) => address);
}

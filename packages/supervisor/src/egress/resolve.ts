import { lookup, Resolver } from "node:dns";
import { RuntimeError, systemCode } from "@openshell/base";
import { type AddressBytes, formatAddress, parseAddress } from "./address.ts";
import { MAX_ADDRESSES, RESOLVE_MS } from "./limits.ts";

/** Turns a host into upstream addresses. Asked only after a connection was allowed, once for each. */
export interface UpstreamResolver {
  /** At least one address, at most `MAX_ADDRESSES`, IPv4 first. Rejects with `resolution_failed`. */
  resolve(host: string): Promise<readonly AddressBytes[]>;
}

/** IP literals are their own answer; other names go to `resolvers`, or to the machine's resolver when there are none. */
export function createResolver(resolvers: readonly string[]): UpstreamResolver {
  const ask = resolvers.length === 0 ? askSystem : askServers(resolvers);
  return {
    async resolve(host) {
      const literal = parseAddress(host);
      if (literal !== undefined) return [literal];
      let texts: readonly string[];
      try {
        texts = await withLimit(ask(host));
      } catch (cause) {
        throw new RuntimeError(
          "resolution_failed",
          `DNS resolution failed for ${host}: ${systemCode(cause) ?? "no answer"}`,
          {
            next: "Check the name and the resolvers of the gateway's machine.",
            cause,
          },
        );
      }
      const found = new Map<string, AddressBytes>();
      for (const text of texts) {
        const bytes = parseAddress(text);
        if (bytes !== undefined) found.set(formatAddress(bytes), bytes);
      }
      const addresses = [...found.values()].slice(0, MAX_ADDRESSES);
      if (addresses.length === 0) {
        throw new RuntimeError("resolution_failed", `DNS resolution failed for ${host}: it has no addresses`, {
          next: "Check the name.",
        });
      }
      return addresses.sort((a, b) => a.length - b.length);
    },
  };
}

function askSystem(host: string): Promise<string[]> {
  return new Promise((resolve, reject) => {
    lookup(host, { all: true, order: "verbatim" }, (error, addresses) => {
      if (error !== null) reject(error);
      else resolve(addresses.map(({ address }) => address));
    });
  });
}

function askServers(servers: readonly string[]): (host: string) => Promise<string[]> {
  const resolver = new Resolver({ timeout: 2_000, tries: 2 });
  resolver.setServers([...servers]);
  return async (host) => {
    const results = await Promise.allSettled([query(resolver, host, 4), query(resolver, host, 6)]);
    const addresses = results.flatMap((result) => (result.status === "fulfilled" ? result.value : []));
    if (addresses.length > 0) return addresses;
    throw (results[0] as PromiseRejectedResult).reason ?? new Error("no answer");
  };
}

function query(resolver: Resolver, host: string, family: 4 | 6): Promise<string[]> {
  return new Promise((resolve, reject) => {
    const done = (error: Error | null, addresses: string[]): void => {
      if (error !== null) reject(error);
      else resolve(addresses);
    };
    if (family === 4) resolver.resolve4(host, done);
    else resolver.resolve6(host, done);
  });
}

async function withLimit<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(Object.assign(new Error("no answer in time"), { code: "ETIMEOUT" })), RESOLVE_MS);
  });
  try {
    return await Promise.race([work, limit]);
  } finally {
    clearTimeout(timer);
  }
}

import type { TestHost, TestInternet } from "../support/internet/index.ts";
import { POLICY_VARIANTS } from "./schedule.ts";

/** Where the sandboxes' requests go: one machine of the test internet under several names. */

export const hostOfVariant = (variant: number): string => `v${variant}.example-allowed.com`;
export const HOST_OF_SHARED = "shared.example-allowed.com";

/** The value of a provider's credential with that serial number, in the run with that salt. */
export function secretOf(salt: string, provider: string, serial: number): string {
  return `sk-${salt}-${provider}-${serial}-e`;
}

/**
 * Answers `PROVIDER SERIAL`: whose credential came with a request, and which of its values; never the value, which would be
 * replaced on its way.
 */
export async function startSites(net: TestInternet): Promise<TestHost> {
  const [first, ...names] = [HOST_OF_SHARED, ...Array.from({ length: POLICY_VARIANTS }, (_, at) => hostOfVariant(at))];
  return await net.host(first!, {
    names,
    services: [
      {
        kind: "https",
        port: 443,
        handler: (request, response) => {
          const found = /^Bearer sk-[0-9a-f]{16}-(.+)-([0-9]+)-e$/.exec(request.headers.authorization ?? "");
          response.end(found === null ? "unknown" : `${found[1]} ${found[2]}`);
        },
      },
    ],
  });
}

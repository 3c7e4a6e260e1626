import { Finding } from "@openshell/ocsf/events.ts";
import type { FindingEvent } from "./events.ts";
import { type Authority, formatAuthority } from "./host-name.ts";

/** What a person should look at, told once each time it happens. `where` is `host:port`. */
const KINDS = {
  authorityMismatch: {
    uid: Finding.authorityMismatch,
    title: "Request authority does not match its connection",
    describe: (where: string) => `A request on a connection to ${where} named another authority`,
  },
  serverNameMismatch: {
    uid: "openshell.tls.server_name_mismatch",
    title: "TLS server name does not match its connection",
    describe: (where: string) => `A TLS connection to ${where} asked for another server name`,
  },
  credentialReturned: {
    uid: Finding.credentialResponseLeak,
    title: "A server sent a credential back",
    describe: (where: string) =>
      `A response of ${where} contained the credential of its request; it was replaced by its placeholder`,
  },
  placeholderInBody: {
    uid: Finding.trafficUninspectable,
    title: "A request body carried a credential placeholder",
    describe: (where: string) => `A request to ${where} was broken off: placeholders in bodies are not replaced there`,
  },
  credentialElsewhere: {
    uid: Finding.credentialEndpointMismatch,
    title: "A credential was used at an endpoint it is not bound to",
    describe: (where: string) => `A request to ${where} carried the placeholder of a credential bound elsewhere`,
  },
  middlewareSkipped: {
    uid: Finding.middlewareUninspectable,
    title: "Traffic passes without a middleware that selects it",
    describe: (where: string) => `Connections to ${where} are not shown to a middleware that may be left out`,
  },
} as const;

export function finding(
  kind: keyof typeof KINDS,
  destination: Authority,
  owners: FindingEvent["owners"],
  policy: string,
): FindingEvent {
  const { uid, title, describe } = KINDS[kind];
  const { host, port } = destination;
  return { uid, title, description: describe(formatAuthority(destination)), host, port, owners, policy };
}

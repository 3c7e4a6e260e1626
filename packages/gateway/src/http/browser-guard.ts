import { isIP } from "node:net";
import { isLoopback } from "../config/address.ts";
import type { AnyRequest } from "./dispatcher.ts";

/**
 * Keeps web pages away from a listener that asks nobody who they are (`disable_tls`). A page may reach loopback under a
 * name of its own that resolves there (DNS rebinding), or send simple requests across origins: the first shows in the
 * host name, the second in the headers that browsers add and pages cannot remove (Fetch Metadata, Origin). Gives the
 * reason of a refusal; undefined lets the request through.
 */
export function browserGuard(request: Pick<AnyRequest, "headers">): string | undefined {
  const problem = suspicion(request);
  return problem === undefined ? undefined : `${problem}; this listener is for programs on this machine`;
}

/** What is wrong with a request to an unauthenticated loopback listener; undefined when nothing is. */
export function suspicion(request: Pick<AnyRequest, "headers">): string | undefined {
  const { headers } = request;
  const authority = headers[":authority"] ?? headers["host"];
  if (typeof authority !== "string" || !isOwnName(authority)) return "the host name is not of this machine";
  const site = headers["sec-fetch-site"];
  if (site !== undefined && site !== "none" && site !== "same-origin") return "a web page of another origin sent this";
  const origin = headers["origin"];
  if (typeof origin === "string" && !isOwnName(origin.replace(/^https?:\/\//, ""))) {
    return "a web page of another origin sent this";
  }
  return undefined;
}

/** `localhost`, a name below it, or a loopback address, with or without port. */
function isOwnName(authority: string): boolean {
  const host = authority
    .replace(/:\d{1,5}$/, "")
    .replace(/^\[(.*)\]$/, "$1")
    .toLowerCase();
  if (isIP(host) !== 0) return isLoopback(host);
  return host === "localhost" || host.endsWith(".localhost");
}

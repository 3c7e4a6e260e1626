import type { TLSSocket } from "node:tls";
import type { Peer } from "../http/peer.ts";
import { ADMIN_ROLE, ALL_SCOPES, type Caller, USER_ROLE } from "./caller.ts";

/** Who a connection's other end is, by the connection alone. */

/** The other process of a Unix socket as SO_PEERCRED tells it; undefined where the addon is not available. */
export interface PeerCredentials {
  readonly uid: number;
  readonly pid: number;
}

/**
 * A caller on the user socket. The socket is 0600 in a 0700 folder, so only this uid and root can connect; the kernel's
 * word is asked as well, and any other uid is refused.
 */
export function userSocketPeer(ownUid: number, credentials: PeerCredentials | undefined): Peer {
  if (credentials !== undefined && credentials.uid !== ownUid) {
    return {
      listener: "user",
      caller: undefined,
      refusal: {
        message: `this gateway belongs to uid ${ownUid}, and uid ${credentials.uid} called`,
        next: "Call as that user, or use the TLS listener with a client certificate",
      },
    };
  }
  const caller: Caller = {
    subject: `uid:${ownUid}`,
    displayName: `uid ${ownUid}`,
    identityProvider: "local",
    roles: [USER_ROLE, ADMIN_ROLE],
    scopes: [ALL_SCOPES],
    admin: true,
    ownerOfMachineFiles: true,
  };
  return { listener: "user", caller, refusal: undefined };
}

/** A caller with a client certificate of this gateway's CA. CN is the subject, OU the roles. */
export function tlsPeer(socket: TLSSocket): Peer {
  if (!socket.authorized) return { listener: "tcp", caller: undefined, refusal: refusalOf(socket) };
  const { subject } = socket.getPeerCertificate();
  const name = [subject?.CN ?? []].flat()[0];
  if (name === undefined || name === "") {
    const message = "the client certificate has no common name";
    return { listener: "tcp", caller: undefined, refusal: { message, next: CERTIFICATE_HINT } };
  }
  const roles = [subject.OU ?? []].flat();
  const caller: Caller = {
    subject: name,
    displayName: name,
    identityProvider: "mtls",
    roles,
    scopes: [ALL_SCOPES],
    // Without an identity provider there are no finer roles: every user of this gateway administers it.
    admin: roles.includes(USER_ROLE) || roles.includes(ADMIN_ROLE),
    ownerOfMachineFiles: false,
  };
  return { listener: "tcp", caller, refusal: undefined };
}

const CERTIFICATE_HINT = "Use the certificate in gateways/<name>/mtls below the OpenShell configuration folder";

function refusalOf(socket: TLSSocket): NonNullable<Peer["refusal"]> {
  const none = socket.authorizationError === undefined || Object.keys(socket.getPeerCertificate()).length === 0;
  const message = none ? "no client certificate was presented" : "the client certificate is not of this gateway";
  return { message, next: CERTIFICATE_HINT };
}

/** A caller of a plaintext TCP listener, which the configuration allows on loopback only. */
export function devPeer(): Peer {
  const caller: Caller = {
    subject: "unauthenticated-local-dev",
    displayName: "unauthenticated local user",
    identityProvider: "local_dev",
    roles: [USER_ROLE, ADMIN_ROLE],
    scopes: [ALL_SCOPES],
    admin: true,
    ownerOfMachineFiles: false,
  };
  return { listener: "tcp", caller, refusal: undefined };
}

/** The host socket: who speaks is proven in each stream's metadata. */
export const hostPeer: Peer = { listener: "host", caller: undefined, refusal: undefined };

import { type ContextKey, type ContextValues, createContextKey, createContextValues } from "@connectrpc/connect";
import { type Peer, peerOf } from "../http/peer.ts";
import { callerKey } from "./caller.ts";

/** Context value of a call: what its connection proved. */
export const peerKey: ContextKey<Peer | undefined> = createContextKey<Peer | undefined>(undefined, {
  description: "connection peer",
});

/** The context values that handlers and interceptors see for one request. */
export function contextOf(request: object): ContextValues {
  const peer = peerOf(request);
  return createContextValues().set(peerKey, peer).set(callerKey, peer?.caller);
}

import { type ContextKey, createContextKey, type HandlerContext } from "@connectrpc/connect";

/** How the gateway knows who calls. `local`: the user socket of the gateway's own uid; `local_dev`: nobody was asked (configured so). */
export type IdentityProviderName = "local" | "mtls" | "local_dev";

/** An authenticated user. */
export interface Caller {
  readonly subject: string;
  readonly displayName: string;
  readonly identityProvider: IdentityProviderName;
  readonly roles: readonly string[];
  readonly scopes: readonly string[];
  /** Platform administrator: passes every workspace and role check. */
  readonly admin: boolean;
  /** True only for the gateway's own uid on the user socket: the one caller that may name folders of this machine as volumes. */
  readonly ownerOfMachineFiles: boolean;
}

/** Role that the bootstrap client certificate carries in its OU. */
export const USER_ROLE = "openshell-user";
export const ADMIN_ROLE = "openshell-admin";
/** OU of certificates that may call `operator` methods and nothing else. */
export const OPERATOR_ROLE = "operator";
export const ALL_SCOPES = "openshell:all";

/** Context value of a call: who made it. Undefined only on methods that need no authentication. */
export const callerKey: ContextKey<Caller | undefined> = createContextKey<Caller | undefined>(undefined, {
  description: "authenticated caller",
});

/** The caller of a handler whose method requires authentication: the interceptor has made sure there is one. */
export function callerOf(context: Pick<HandlerContext, "values">): Caller {
  const caller = context.values.get(callerKey);
  if (caller === undefined) throw new TypeError("no caller: this method is declared unauthenticated");
  return caller;
}

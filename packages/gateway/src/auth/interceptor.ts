import { type DescMethod, getOption, hasOption } from "@bufbuild/protobuf";
import type { Interceptor } from "@connectrpc/connect";
import { permissionDenied, unauthenticated } from "@openshell/api/errors.ts";
import { authorization } from "@openshell/api/generated/options_pb.js";
import type { Peer } from "../http/peer.ts";
import { OPERATOR_ROLE } from "./caller.ts";
import { peerKey } from "./context.ts";

type AuthMode = "unauthenticated" | "bearer" | "sandbox" | "dual" | "operator" | "peer";
const MODES: readonly string[] = ["unauthenticated", "bearer", "sandbox", "dual", "operator", "peer"];
/** Reading an option decodes it: once a method is enough. */
const known = new WeakMap<DescMethod, AuthMode>();

/** The authentication that a method asks for. A method that declares none, or an unknown one, stops the start. */
export function authModeOf(method: DescMethod): AuthMode {
  const seen = known.get(method);
  if (seen !== undefined) return seen;
  const mode = hasOption(method, authorization) ? getOption(method, authorization).authMode : "";
  if (!MODES.includes(mode)) throw new TypeError(`${method.name} declares no valid auth_mode`);
  known.set(method, mode as AuthMode);
  return mode as AuthMode;
}

/**
 * Lets a call of the public service through only when its connection proved who calls. Runs before every handler,
 * including those of RPCs that are not built: an unauthorized caller learns nothing of them.
 */
export const authInterceptor: Interceptor = (next) => async (request) => {
  const peer = request.contextValues.get(peerKey);
  const mode = authModeOf(request.method);
  if (mode === "unauthenticated") return next(request);
  const caller = peer?.caller;
  if (caller === undefined) throw refuse(peer);
  // An operator's certificate opens its own methods and no other; a user's never opens those.
  const operator = caller.identityProvider === "mtls" && caller.roles.includes(OPERATOR_ROLE);
  if (mode === "operator" ? !operator : !caller.admin) {
    throw permissionDenied(`${caller.subject} may not call ${request.method.name}`, {
      next: mode === "operator" ? "Use an operator's client certificate" : "Use a user's client certificate",
    });
  }
  return next(request);
};

function refuse(peer: Peer | undefined): Error {
  const { message, next } = peer?.refusal ?? { message: "the caller is unknown", next: "Use a client certificate" };
  return unauthenticated(message, { next });
}

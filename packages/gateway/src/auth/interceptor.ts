import { type DescMethod, type DescService, getOption, hasOption } from "@bufbuild/protobuf";
import type { Interceptor } from "@connectrpc/connect";
import { permissionDenied, unauthenticated } from "@openshell/api/errors.ts";
import { Health } from "@openshell/api/generated/grpc/health/v1/health_pb.js";
import { ServerReflection } from "@openshell/api/generated/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "@openshell/api/generated/grpc/reflection/v1alpha/reflection_pb.js";
import { authorization } from "@openshell/api/generated/options_pb.js";
import type { Peer } from "../http/peer.ts";
import { OPERATOR_ROLE } from "./caller.ts";
import { peerKey } from "./context.ts";

type AuthMode = "unauthenticated" | "bearer" | "sandbox" | "dual" | "operator" | "peer";
const MODES: readonly AuthMode[] = ["unauthenticated", "bearer", "sandbox", "dual", "operator", "peer"];
/** Reading an option decodes it: once a method is enough. */
const known = new WeakMap<DescMethod, AuthMode>();

/**
 * Services of public standards. They declare no auth_mode, since their files are not ours to annotate: what each asks for
 * is said here, whole service by whole service. They hold no secret: whether this process works, and schemas that anybody
 * can read in proto/public. Whoever is not in this table and declares nothing is not served.
 */
const STANDARD_SERVICES: ReadonlyMap<string, AuthMode> = new Map([
  [Health.typeName, "unauthenticated"],
  [ServerReflection.typeName, "unauthenticated"],
  [ServerReflectionAlpha.typeName, "unauthenticated"],
]);

/** The authentication that a method asks for. Throws for one that declares none, or an unknown one. */
export function authModeOf(method: DescMethod): AuthMode {
  let mode = known.get(method);
  if (mode === undefined) {
    const declared = hasOption(method, authorization) ? getOption(method, authorization).authMode : "";
    mode = MODES.find((one) => one === declared) ?? STANDARD_SERVICES.get(method.parent.typeName);
    if (mode === undefined) throw new TypeError(`${method.name} declares no valid auth_mode`);
    known.set(method, mode);
  }
  return mode;
}

/** Throws when a method of these services has no valid authentication: such a gateway must not start. */
export function checkAuthModes(services: readonly DescService[]): void {
  for (const service of services) for (const method of service.methods) authModeOf(method);
}

/**
 * Lets a call through only when its connection proved who calls, as its method asks. Runs before every handler, including
 * those of RPCs that are not built: an unauthorized caller learns nothing of them.
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

import { create } from "@bufbuild/protobuf";
import {
  type SandboxPolicy,
  type SupervisorMiddlewareService,
  SupervisorMiddlewareServiceSchema,
} from "@openshell/api";
import { failedPrecondition } from "@openshell/api/errors.ts";
import {
  type MiddlewareService,
  MiddlewareServiceSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { toDuration } from "@openshell/api/times.ts";
import type { MiddlewareRegistration } from "../config/middleware.ts";

/** Names that begin so are of middlewares that run inside the supervisor. */
const BUILT_IN = "openshell/";

/** The part of the configuration that registers services. */
export interface Registrations {
  readonly supervisor: { readonly middleware: readonly MiddlewareRegistration[] };
}

/**
 * Every service that a policy names must be registered.
 *
 * @throws ApiError FAILED_PRECONDITION
 */
export function checkMiddlewares(policy: SandboxPolicy, { supervisor }: Registrations): void {
  const known = new Set(supervisor.middleware.map(({ name }) => name));
  for (const [key, { middleware }] of Object.entries(policy.networkMiddlewares)) {
    if (middleware.startsWith(BUILT_IN) || known.has(middleware)) continue;
    throw failedPrecondition(
      `network middleware '${key}' names '${middleware}', which is not registered in this gateway`,
      {
        next: "Register it in [[openshell.supervisor.middleware]] of gateway.toml and restart the gateway, or remove it from the policy",
      },
    );
  }
}

/** The registered services that a policy names, in the order of names. */
export function namedServices(policy: SandboxPolicy, { supervisor }: Registrations): readonly MiddlewareRegistration[] {
  const named = new Set(Object.values(policy.networkMiddlewares).map(({ middleware }) => middleware));
  const found = supervisor.middleware.filter(({ name }) => named.has(name));
  return found.toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

/** As supervisors get it. */
export function deliveredService(service: MiddlewareRegistration): MiddlewareService {
  return create(MiddlewareServiceSchema, {
    name: service.name,
    endpoint: service.endpoint,
    caPem: service.ca?.pem ?? "",
    maxPayloadBytes: service.maxPayloadBytes,
    timeout: toDuration(service.timeoutMs),
    audience: service.audience,
    allowInsecureTransport: service.allowInsecureTransport,
  });
}

/** As the API shows it. */
export function shownService(service: MiddlewareService): SupervisorMiddlewareService {
  return create(SupervisorMiddlewareServiceSchema, {
    name: service.name,
    grpcEndpoint: service.endpoint,
    tlsCaCertPem: Buffer.from(service.caPem),
    maxPayloadBytes: BigInt(service.maxPayloadBytes),
    ...(service.timeout === undefined ? {} : { requestTimeout: service.timeout }),
    audience: service.audience,
    allowInsecureTransport: service.allowInsecureTransport,
  });
}

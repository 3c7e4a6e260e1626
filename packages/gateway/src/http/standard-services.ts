import type { DescFile, DescService } from "@bufbuild/protobuf";
import type { ConnectRouter } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { file_google_rpc_error_details } from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { file_google_rpc_status } from "@openshell/api/generated/google/rpc/status_pb.js";
import { Health } from "@openshell/api/generated/grpc/health/v1/health_pb.js";
import { ServerReflection } from "@openshell/api/generated/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "@openshell/api/generated/grpc/reflection/v1alpha/reflection_pb.js";
import type { Clock } from "@openshell/base";
import { grpcHealth } from "./grpc-health.ts";
import { reflection } from "./reflection.ts";
import { SchemaIndex } from "./schema-index.ts";
import type { ServingStatus } from "./serving-status.ts";

/**
 * Every service of the users' listeners, and so all that reflection tells of. The hosts' protocol is served on another
 * socket and is nobody else's business.
 */
export const PUBLIC_SERVICES: readonly DescService[] = [OpenShell, Health, ServerReflection, ServerReflectionAlpha];

/** No method names these, but errors carry them: tools that print details need their schema. */
const ERROR_FILES: readonly DescFile[] = [file_google_rpc_status, file_google_rpc_error_details];

/** What reflection may tell. */
export function publicSchema(): SchemaIndex {
  return new SchemaIndex(PUBLIC_SERVICES, ERROR_FILES);
}

export interface StandardServicesOptions {
  readonly serving: ServingStatus;
  readonly clock: Clock;
  /** Aborted when the gateway ends its streams. */
  readonly stopping: AbortSignal;
}

/** gRPC's own services, which speak of the server rather than of a resource: health and reflection. */
export function standardRoutes({ serving, clock, stopping }: StandardServicesOptions): (router: ConnectRouter) => void {
  let made: SchemaIndex | undefined;
  const schema = (): SchemaIndex => {
    made ??= publicSchema();
    return made;
  };
  const { v1, v1alpha } = reflection({ schema, clock, stopping });
  return (router) => {
    router.service(Health, grpcHealth(serving));
    router.service(ServerReflection, v1);
    router.service(ServerReflectionAlpha, v1alpha);
  };
}

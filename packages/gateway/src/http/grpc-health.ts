import type { ServiceImpl } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { notFound } from "@openshell/api/errors.ts";
import {
  type Health,
  HealthCheckResponse_ServingStatus as Serving,
} from "@openshell/api/generated/grpc/health/v1/health_pb.js";
import { callerKey } from "../auth/caller.ts";
import { HttpLimits } from "./limits.ts";
import type { ServingStatus } from "./serving-status.ts";

/** The names that can be asked about: the server as a whole, and its one service that needs more than the process. */
const NAMES: readonly string[] = ["", OpenShell.typeName];

/** The standard gRPC health service over the gateway's own status. */
export function grpcHealth(status: ServingStatus): ServiceImpl<typeof Health> {
  return {
    async check({ service }) {
      if (!NAMES.includes(service)) throw notFound("service", service.slice(0, HttpLimits.reflectionNameCharacters));
      return { status: servingOf(await status.check()) };
    },

    async list() {
      const serving = servingOf(await status.check());
      return { statuses: Object.fromEntries(NAMES.map((name) => [name, { status: serving }])) };
    },

    async *watch({ service }, { signal, values }) {
      const known = NAMES.includes(service);
      let told = false;
      for await (const serves of status.watch(signal, values.get(callerKey) === undefined)) {
        if (known) yield { status: servingOf(serves) };
        // A service that is not there now never comes while this process lives; the call stays open as the protocol says.
        else if (!told) yield { status: Serving.SERVICE_UNKNOWN };
        told = true;
      }
    },
  };
}

function servingOf(serves: boolean): Serving {
  return serves ? Serving.SERVING : Serving.NOT_SERVING;
}

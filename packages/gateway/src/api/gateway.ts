import { create } from "@bufbuild/protobuf";
import {
  ExtensionKind,
  GetCurrentUserResponseSchema,
  GetGatewayInfoResponseSchema,
  HealthResponseSchema,
} from "@openshell/api";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { type ApiDeps, callerFrom } from "./context.ts";
import { serviceStatus } from "./service-status.ts";

/** What the gateway says about itself and about its caller. */
export function gatewayHandlers(deps: ApiDeps): Pick<OpenShellImpl, "health" | "getCurrentUser" | "getGatewayInfo"> {
  const status = serviceStatus(() => deps.store.check(), deps.clock);
  return {
    async health() {
      return create(HealthResponseSchema, { status: await status(), version: deps.build.version });
    },

    async getCurrentUser(_request, context) {
      const { subject, displayName, roles, scopes, identityProvider } = callerFrom(context);
      return create(GetCurrentUserResponseSchema, {
        subject,
        displayName,
        roles: [...roles],
        scopes: [...scopes],
        identityProvider,
      });
    },

    async getGatewayInfo() {
      const { capabilities, name } = deps.driver;
      return create(GetGatewayInfoResponseSchema, {
        status: await status(),
        gatewayVersion: deps.build.version,
        computeDrivers: [
          {
            name,
            capabilities: {
              driverName: capabilities.driverName,
              driverVersion: capabilities.driverVersion,
              resourceCapabilities: {
                cpu: { limitSupported: capabilities.cpuLimit },
                memory: { limitSupported: capabilities.memoryLimit },
                gpu: { defaultSelectionSupported: capabilities.gpu, countSelectionSupported: capabilities.gpu },
              },
            },
          },
        ],
        extensions: [
          {
            kind: ExtensionKind.COMPUTE_DRIVER,
            configuredName: name,
            implementationName: capabilities.driverName,
            implementationVersion: capabilities.driverVersion,
            protocolMajor: 1,
            supportedCapabilities: [
              `capture:${capabilities.captureMode}`,
              `identity:${capabilities.identityMode}`,
            ].toSorted(),
          },
        ],
      });
    },
  };
}

/** The provider environment of the supervisor protocol as a snapshot. */
import {
  type ProviderEnvironment,
  ProviderValue_Classification,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { Secret } from "./secret.ts";
import type { ProviderSnapshot, ProviderValue } from "./snapshot.ts";

export function snapshotFromProto(message: ProviderEnvironment): ProviderSnapshot {
  return {
    revision: message.providerRevision,
    values: message.values.map((value) => ({
      name: value.name,
      value: new Secret(value.value),
      classification: classificationFrom(value.classification),
      endpoints: value.endpoints.map(({ host, port, path }) => ({ host, port, path })),
      identity: value.credentialIdentity,
      expiresAt:
        value.expirationTime === undefined
          ? undefined
          : Number(value.expirationTime.seconds) * 1000 + Math.floor(value.expirationTime.nanos / 1e6),
      provider: value.provider,
    })),
  };
}

function classificationFrom(classification: ProviderValue_Classification): ProviderValue["classification"] {
  if (classification === ProviderValue_Classification.NON_SECRET) return "non_secret";
  return classification === ProviderValue_Classification.STATIC_CREDENTIAL ? "static_credential" : "unclassified";
}

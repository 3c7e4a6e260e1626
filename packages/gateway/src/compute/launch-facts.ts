import type { SandboxPolicy } from "@openshell/api";
import { RuntimeError } from "@openshell/base";
import type { ComputeDriver } from "@openshell/drivers/driver.ts";
import type { GatewayDeps } from "../deps.ts";
import { takenArchive } from "../staging/archives.ts";
import type { SandboxRecord } from "../store/types.ts";
import { type LaunchFacts, NONCE_SECRET, nonceContext } from "./launch.ts";
import { runtimeFacts } from "./runtime-record.ts";
import { localVolumes } from "./volumes.ts";

type Deps = Pick<GatewayDeps, "store" | "vault" | "inspectionCas" | "config" | "paths"> & {
  readonly driver: ComputeDriver;
};

/** Reads what a launch needs beside the record. Before a record is stored its nonce is empty. */
export function launchFacts(deps: Deps): (record: SandboxRecord) => Promise<LaunchFacts> {
  const { store, vault, inspectionCas, config, driver, paths } = deps;
  return async (record) => {
    const [ca, latest, secret, block] = await Promise.all([
      inspectionCas.of(record.workspace),
      store.policies.latest(record.id),
      store.secrets.get(record.id, NONCE_SECRET),
      driver.capabilities.identityMode === "root" ? store.idBlocks.of(record.id) : undefined,
    ]);
    if (secret !== undefined && secret.version !== record.generation) {
      throw new RuntimeError(
        "nonce_mismatch",
        `the stored nonce of sandbox ${record.id} is of generation ${secret.version}`,
      );
    }
    return {
      nonce:
        secret === undefined
          ? new Uint8Array()
          : vault.open(nonceContext(record.workspace, record.id, record.generation), secret.sealed),
      idBlock: block?.index,
      ca,
      policy: record.spec.policy,
      endpointPorts: endpointPorts(latest?.policy ?? record.spec.policy),
      volumes: localVolumes(record.spec.template?.driverConfig).volumes,
      stagedArchive: runtimeFacts(record).stagedArchive ? takenArchive(paths.state, record.id) : undefined,
      config,
    };
  };
}

function endpointPorts(policy: SandboxPolicy | undefined): readonly number[] {
  const endpoints = Object.values(policy?.networkPolicies ?? {}).flatMap((rule) => rule.endpoints);
  const ports = endpoints.flatMap((endpoint) => (endpoint.ports.length > 0 ? endpoint.ports : [endpoint.port]));
  return [...new Set(ports.filter((port) => port > 0))].toSorted((a, b) => a - b);
}

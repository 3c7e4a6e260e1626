import { create } from "@bufbuild/protobuf";
import type { SandboxPolicy, SandboxTemplate } from "@openshell/api";
import {
  type AttachSandbox,
  AttachSandboxSchema,
  type MainProcess,
  MainProcessSchema,
  type SandboxToken,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { ResourceLimits, SandboxIntent, StartedSandbox, VolumeRequest } from "@openshell/drivers/driver.ts";
import type { GatewayConfig } from "../config/config.ts";
import type { InspectionCaMaterial } from "../pki/inspection-ca.ts";
import type { SandboxRecord } from "../store/types.ts";
import type { SecretContext } from "../store/vault.ts";
import { imageRoot } from "./image-root.ts";
import { minimumIsolation } from "./isolation.ts";
import { resourceLimits } from "./resources.ts";
import { runtimeFacts } from "./runtime-record.ts";

/** Name of the stored attach nonce of a sandbox; its version is the generation. */
export const NONCE_SECRET = "attach-nonce";
export const NONCE_BYTES = 32;

/** What the sealed nonce of one generation is bound to. */
export function nonceContext(workspace: string, sandboxId: string, generation: bigint): SecretContext {
  return { purpose: "attach nonce", workspace, owner: sandboxId, key: NONCE_SECRET, version: generation };
}

export interface LaunchFacts {
  readonly nonce: Uint8Array;
  readonly idBlock: number | undefined;
  readonly ca: InspectionCaMaterial;
  /** What the sandbox was created with: its process section holds for life. */
  readonly policy: SandboxPolicy | undefined;
  /** Ports that the policy in force names. */
  readonly endpointPorts: readonly number[];
  readonly volumes: readonly VolumeRequest[];
  /** The archive that the sandbox took, if it was created from one. */
  readonly stagedArchive: string | undefined;
  readonly config: GatewayConfig;
}

/** What the driver is asked to run for this record. */
export function sandboxIntent(record: SandboxRecord, facts: LaunchFacts): SandboxIntent {
  const { config, policy } = facts;
  return {
    sandboxId: record.id,
    name: record.name,
    workspace: record.workspace,
    generation: record.generation,
    nonce: facts.nonce,
    idBlock: facts.idBlock,
    root:
      facts.stagedArchive === undefined
        ? imageRoot(record.spec.template?.driverConfig).root
        : { kind: "staged", source: facts.stagedArchive },
    hostname: record.name,
    process: { runAsUser: policy?.process?.runAsUser ?? "", runAsGroup: policy?.process?.runAsGroup ?? "" },
    resources: limitsOf(record.spec.template),
    volumes: facts.volumes,
    endpointPorts: facts.endpointPorts,
    writablePaths: policy?.filesystem?.readWrite ?? [],
    caller: runtimeFacts(record).caller,
    inspectionCaPem: facts.ca.certificatePem,
    additionalCaPem: config.supervisor.network.additionalCa?.pem ?? "",
  };
}

function limitsOf(template: SandboxTemplate | undefined): ResourceLimits {
  return resourceLimits(template?.resources).limits;
}

/** What an attach is made of. Kept for as long as a sandbox runs, so it holds no more than what a host gets of it. */
export interface AttachFacts {
  readonly sandbox: Pick<SandboxRecord, "id" | "name" | "workspace" | "generation">;
  readonly minimumIsolation: readonly string[];
  readonly started: StartedSandbox;
  readonly nonce: Uint8Array;
  readonly ca: InspectionCaMaterial;
  readonly config: GatewayConfig;
  readonly alwaysDenied: readonly string[];
  readonly logDirectory: string;
}

/** Of a record and its launch, what an attach needs; neither is kept. */
export function attachFacts(
  { id, name, workspace, generation, annotations }: SandboxRecord,
  { nonce, ca, config }: LaunchFacts,
  where: Pick<AttachFacts, "started" | "alwaysDenied" | "logDirectory">,
): AttachFacts {
  const sandbox = { id, name, workspace, generation };
  return { sandbox, minimumIsolation: minimumIsolation({ annotations }, config), nonce, ca, config, ...where };
}

/** Everything a host needs to hold the sandbox. Complete: a host that reconnects gets it again. */
export function attachMessage(facts: AttachFacts, token: SandboxToken): AttachSandbox {
  const { sandbox, started, ca, config } = facts;
  return create(AttachSandboxSchema, {
    sandboxId: sandbox.id,
    sandboxName: sandbox.name,
    workspace: sandbox.workspace,
    generation: sandbox.generation,
    token,
    local: {
      socketPath: started.boundary.socketPath,
      nonce: facts.nonce,
      layout: layoutOf(started),
      netnsCookie: started.boundary.netnsCookie,
      initPid: started.record.pid,
    },
    inspectionCa: { certificatePem: ca.certificatePem, privateKeyPem: ca.privateKeyPem.reveal() },
    network: {
      additionalCaPem: config.supervisor.network.additionalCa?.pem ?? "",
      resolvers: [...config.supervisor.network.resolvers],
      alwaysDenied: [...facts.alwaysDenied],
    },
    limits: {},
    logDirectory: facts.logDirectory,
    minimumIsolation: [...facts.minimumIsolation],
    driverIsolation: started.isolation.map(({ name, enforced, detail }) => ({ name, enforced, detail })),
  });
}

function layoutOf({ layout }: StartedSandbox) {
  return {
    home: layout.home,
    workingDirectory: layout.workingDirectory,
    uid: layout.uid,
    gid: layout.gid,
    readOnlyPaths: [...layout.readOnlyPaths],
    readWritePaths: [...layout.readWritePaths],
    processLimit: layout.processLimit,
    environment: { ...layout.environment },
    imageRoot: layout.imageRoot ?? "",
  };
}

/** The main process of this record; an empty command lets the supervisor choose the login shell. */
export function mainProcess(record: SandboxRecord): MainProcess {
  const facts = runtimeFacts(record);
  return create(MainProcessSchema, {
    command: facts.defaultCommand ? [] : record.spec.command,
    environment: sandboxEnvironment(record),
    tty: record.spec.tty,
    awaitAttachment: facts.awaitAttachment,
  });
}

/** What every process of the sandbox finds in its environment by the creator's wish. */
export function sandboxEnvironment(record: Pick<SandboxRecord, "spec">): Record<string, string> {
  return { ...record.spec.template?.environment, ...record.spec.environment };
}

import { randomInt, randomUUID } from "node:crypto";
import { clone, create } from "@bufbuild/protobuf";
import {
  type CreateSandboxRequest,
  SandboxPhase,
  type SandboxSpec,
  SandboxSpecSchema,
  SandboxStatusSchema,
} from "@openshell/api";
import { alreadyExists, unsupportedField } from "@openshell/api/errors.ts";
import { LogField } from "@openshell/base";
import type { Caller } from "../auth/caller.ts";
import { imageRoot, withoutToken } from "../compute/image-root.ts";
import { NONCE_BYTES, sandboxIntent } from "../compute/launch.ts";
import { encodeRuntimeFacts } from "../compute/runtime-record.ts";
import { startingStatus } from "../compute/status.ts";
import { checkedPolicy } from "../policies/check.ts";
import { checkMiddlewares } from "../policies/middleware.ts";
import { policyNotes } from "../policies/notes.ts";
import { policyHash } from "../policies/rules.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { NewSandbox, ProviderRecord, SandboxRecord } from "../store/types.ts";
import type { Admission } from "./admission.ts";
import type { ApiDeps } from "./context.ts";
import { driverError } from "./driver-errors.ts";
import { storeNonce, write } from "./mutations.ts";
import { checkAttachable } from "./sandbox-providers.ts";

/** The main process when nobody names one. */
const DEFAULT_COMMAND: readonly string[] = ["/bin/bash", "-l"];
/** Attempts to find a free generated name. */
const NAME_ATTEMPTS = 5;
/** Attempts while its providers are being changed. */
const PROVIDER_ATTEMPTS = 10;

/** Stores the sandbox as PROVISIONING with everything its launch needs; the controller does the rest. */
export async function createSandbox(
  deps: ApiDeps,
  request: CreateSandboxRequest,
  workspace: string,
  caller: Caller,
  admission: Admission,
): Promise<SandboxRecord> {
  refuseUnsupported(request);
  const spec = clone(SandboxSpecSchema, request.spec!);
  const defaultCommand = spec.command.length === 0;
  if (defaultCommand) {
    spec.command = [...DEFAULT_COMMAND];
    spec.tty = true;
  }
  spec.providers = [...new Set(spec.providers)];
  spec.providerAttachmentEpoch = randomUUID();
  const providers = await checkAttachable(deps, workspace, spec.providers);
  if (spec.policy !== undefined) {
    spec.policy = checkedPolicy(spec.policy, spec.providers, "spec.policy");
    checkMiddlewares(spec.policy, deps.config);
  }
  const { token } = imageRoot(spec.template?.driverConfig);
  const facts = { id: randomUUID(), workspace, caller, defaultCommand, stagedArchive: token !== undefined, providers };
  if (token === undefined) return await storeSandbox(deps, request, spec, facts, admission);
  spec.template!.driverConfig = withoutToken(spec.template!.driverConfig!);
  await deps.archives.take(token, { workspace, subject: caller.subject, sandboxId: facts.id });
  try {
    return await storeSandbox(deps, request, spec, facts, admission);
  } catch (error) {
    // Unless it was stored after all: then it is made of it. Where the store cannot say, the next start of the gateway will.
    const stored = await deps.store.sandboxes.byId(facts.id).catch(() => "unknown" as const);
    if (stored === undefined) await deps.archives.release(facts.id);
    throw error;
  }
}

/** What is known of a sandbox beside the request. */
interface NewFacts {
  readonly id: string;
  readonly workspace: string;
  readonly caller: Caller;
  readonly defaultCommand: boolean;
  readonly stagedArchive: boolean;
  /** Those that the specification names, as they were read. */
  readonly providers: readonly ProviderRecord[];
}

async function storeSandbox(
  deps: ApiDeps,
  request: CreateSandboxRequest,
  spec: SandboxSpec,
  facts: NewFacts,
  admission: Admission,
): Promise<SandboxRecord> {
  const { store, clock } = deps;
  const { workspace, caller } = facts;
  let { providers } = facts;
  for (let attempt = 1; ; attempt++) {
    const record = newRecord(deps, request, spec, facts);
    await validateWithDriver(deps, record);
    const commands: Command<unknown>[] = [
      ...admission.admit,
      store.providers.unchanged(providers),
      store.sandboxes.create(record),
      storeNonce(deps, workspace, record.id, record.generation),
    ];
    if (deps.driver.capabilities.identityMode === "root") commands.push(store.idBlocks.allot(record.id));
    if (spec.policy !== undefined) {
      const { policy } = spec;
      const revision = { scope: record.id, hash: policyHash(policy), policy, createdAt: clock.now(), provenance: {} };
      commands.push(store.policies.append({ ...revision, status: "pending", expectedLatest: 0 }));
    }
    commands.push(...admission.succeed(Buffer.from(record.id)));
    try {
      await write(deps, commands);
    } catch (error) {
      if (isStoreError(error, "store_conflict") && error.subject === "provider" && attempt < PROVIDER_ATTEMPTS) {
        providers = await checkAttachable(deps, workspace, spec.providers);
        continue;
      }
      if (!isStoreError(error, "store_already_exists") || error.subject !== "sandbox") throw error;
      if (request.name !== "") throw alreadyExists("sandbox", request.name);
      if (attempt >= NAME_ATTEMPTS) throw error;
      continue;
    }
    const fields = {
      [LogField.sandboxId]: record.id,
      [LogField.sandboxName]: record.name,
      [LogField.workspace]: workspace,
    };
    deps.log.info({ ...fields, [LogField.subject]: caller.subject }, "sandbox created");
    for (const note of policyNotes(spec.policy, spec.providers, undefined))
      deps.feeds.of(record.id).addEvent(note, clock.now());
    return { ...record, resourceVersion: 1n, deletionAt: undefined };
  }
}

function refuseUnsupported(request: CreateSandboxRequest): void {
  if (request.workloadTemplate !== "") {
    const next = "Describe the workload in spec.template";
    throw unsupportedField("workload_template", "sandbox templates are not built yet in this gateway", next);
  }
  if (request.serviceExposures.length > 0) {
    const next = "Create the sandbox without service_exposures";
    throw unsupportedField("service_exposures", "service exposures are not built yet in this gateway", next);
  }
}

function newRecord(deps: ApiDeps, request: CreateSandboxRequest, spec: SandboxSpec, facts: NewFacts): NewSandbox {
  const now = deps.clock.now();
  const owner = facts.caller.ownerOfMachineFiles;
  return {
    id: facts.id,
    name: request.name === "" ? generatedName() : request.name,
    workspace: facts.workspace,
    labels: { ...request.labels },
    annotations: { ...request.annotations },
    createdAt: now,
    spec,
    status: startingStatus(create(SandboxStatusSchema), SandboxPhase.PROVISIONING, now),
    hostKeyFingerprint: "",
    workloadTemplate: undefined,
    generation: 1n,
    driver: deps.driver.name,
    driverRecord: null,
    runtimeRecord: encodeRuntimeFacts({
      caller: owner ? { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 } : undefined,
      defaultCommand: facts.defaultCommand,
      awaitAttachment: request.awaitMainProcessAttachment,
      launchedGeneration: 0n,
      bootId: "",
      stagedArchive: facts.stagedArchive,
      quickRuns: 0,
      interruptedStarts: 0,
    }),
  };
}

/** Everything that the driver would refuse is refused before anything is stored. */
async function validateWithDriver(deps: ApiDeps, record: NewSandbox): Promise<void> {
  const stored: SandboxRecord = { ...record, resourceVersion: 1n, deletionAt: undefined };
  const idBlock = deps.driver.capabilities.identityMode === "root" ? 0 : undefined;
  const launch = { ...(await deps.launchFacts(stored)), nonce: new Uint8Array(NONCE_BYTES), idBlock };
  await deps.driver.validate(sandboxIntent(stored, launch)).catch((error: unknown) => {
    throw driverError(error);
  });
}

const LETTERS = "bcdfghjkmnpqrstvwxz23456789";

function generatedName(): string {
  return `sandbox-${Array.from({ length: 8 }, () => LETTERS[randomInt(LETTERS.length)]).join("")}`;
}

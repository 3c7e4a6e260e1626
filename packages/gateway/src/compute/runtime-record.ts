import type { JsonValue, SandboxRecord } from "../store/types.ts";

/** What the life cycle remembers of a sandbox beside its public record. No secrets. */
export interface RuntimeFacts {
  /** Who created it, as the kernel said; undefined for a remote caller. */
  readonly caller: { readonly uid: number; readonly gid: number } | undefined;
  /** The creator named no command: the supervisor chooses a login shell that exists. */
  readonly defaultCommand: boolean;
  /** The creator said that it will attach. */
  readonly awaitAttachment: boolean;
  /** Generation whose init was started and may have run the workload: it is never launched a second time. 0: none. */
  readonly launchedGeneration: bigint;
  /** Boot of the machine at that launch. */
  readonly bootId: string;
  /** Runs one after the other that ended soon after their start and were followed by a restart: the wait grows with them. */
  readonly quickRuns: number;
  /** Starts one after the other that were cut off before the main process ran, and were repeated. */
  readonly interruptedStarts: number;
  /** It was created from an archive that its creator staged. */
  readonly stagedArchive: boolean;
  /** The isolation report of one generation, as JSON. */
  readonly isolation?: { readonly generation: string; readonly report: string } | undefined;
}

export function runtimeFacts(record: Pick<SandboxRecord, "runtimeRecord">): RuntimeFacts {
  const stored = (record.runtimeRecord ?? {}) as Record<string, JsonValue>;
  const caller = stored.caller as { uid: number; gid: number } | undefined;
  return {
    caller: caller === undefined || caller === null ? undefined : { uid: caller.uid, gid: caller.gid },
    defaultCommand: stored.defaultCommand === true,
    awaitAttachment: stored.awaitAttachment === true,
    launchedGeneration: BigInt(typeof stored.launchedGeneration === "string" ? stored.launchedGeneration : "0"),
    bootId: typeof stored.bootId === "string" ? stored.bootId : "",
    ...storedReport(stored.isolation),
    stagedArchive: stored.stagedArchive === true,
    interruptedStarts: typeof stored.interruptedStarts === "number" ? stored.interruptedStarts : 0,
    quickRuns: typeof stored.quickRuns === "number" ? stored.quickRuns : 0,
  };
}

function storedReport(stored: JsonValue | undefined): Pick<RuntimeFacts, "isolation"> {
  const isolation = stored as { generation?: unknown; report?: unknown } | null | undefined;
  if (typeof isolation?.generation !== "string" || typeof isolation.report !== "string") return {};
  return { isolation: { generation: isolation.generation, report: isolation.report } };
}

export function encodeRuntimeFacts(facts: RuntimeFacts): JsonValue {
  const { caller, isolation, launchedGeneration, ...rest } = facts;
  return {
    ...rest,
    ...(isolation === undefined ? {} : { isolation: { ...isolation } }),
    launchedGeneration: launchedGeneration.toString(),
    ...(caller === undefined ? {} : { caller: { uid: caller.uid, gid: caller.gid } }),
  };
}

/** Annotation of sandboxes that are deleted once their main process has ended and its output was taken. */
export const RETENTION_ANNOTATION = "openshell.nvidia.com/retention";

export function isEphemeral(record: Pick<SandboxRecord, "annotations">): boolean {
  return record.annotations[RETENTION_ANNOTATION] === "ephemeral";
}

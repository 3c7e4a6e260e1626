import type { IsolationReport } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { escapeUntrusted } from "@openshell/base";
import { minimumProblem } from "@openshell/boundary/isolation-layers.ts";
import type { GatewayConfig } from "../config/config.ts";
import type { SandboxRecord } from "../store/types.ts";
import type { RuntimeFacts } from "./runtime-record.ts";
import type { ConditionFacts, ReadyReason } from "./status.ts";

/**
 * Public messages have no field for isolation. A demand comes in, and the report goes out, as an annotation of the sandbox:
 * clients that do not know them pass them on untouched (docs/architecture/isolation.md).
 */
export const MINIMUM_ISOLATION_ANNOTATION = "openshell.dev/minimum-isolation";
export const ISOLATION_ANNOTATION = "openshell.dev/isolation";

/** Characters of a layer's detail in the report. */
const MAX_DETAIL = 300;
/** Layers of one report; a supervisor has about fifteen to tell of. */
const MAX_LAYERS = 64;

/** Layers and levels as an annotation has them: separated by commas. */
export function parseMinimum(text: string): readonly string[] {
  return text
    .split(",")
    .map((name) => name.trim())
    .filter((name) => name !== "");
}

/** What is wrong with an annotation about isolation, or undefined. */
export function isolationAnnotationProblem(key: string, value: string): string | undefined {
  if (key === ISOLATION_ANNOTATION) return "is written by the gateway";
  if (key !== MINIMUM_ISOLATION_ANNOTATION) return undefined;
  return minimumProblem(parseMinimum(value));
}

/** What must be in force for this sandbox to start: the gateway's own minimum and the sandbox's. */
export function minimumIsolation(record: Pick<SandboxRecord, "annotations">, config: GatewayConfig): readonly string[] {
  const own = parseMinimum(record.annotations[MINIMUM_ISOLATION_ANNOTATION] ?? "");
  return [...new Set([...config.supervisor.minimumIsolation, ...own])];
}

/** The stored form of one generation's report. */
export function storedIsolation(report: IsolationReport, generation: bigint): NonNullable<RuntimeFacts["isolation"]> {
  const layers = report.layers.slice(0, MAX_LAYERS).map(({ name, enforced, tested, detail }) => ({
    name: escapeUntrusted(name, 64),
    enforced,
    tested,
    ...(detail === "" ? {} : { detail: escapeUntrusted(detail, MAX_DETAIL) }),
  }));
  const text = JSON.stringify({ network_capture: escapeUntrusted(report.captureMode, 64), layers });
  return { generation: generation.toString(), report: text };
}

/** Annotations as clients see them: the report of the running generation beside the owner's. */
export function publicAnnotations(
  record: Pick<SandboxRecord, "annotations" | "generation">,
  facts: Pick<RuntimeFacts, "isolation">,
): Record<string, string> {
  const { isolation } = facts;
  return isolation === undefined || isolation.generation !== record.generation.toString()
    ? { ...record.annotations }
    : { ...record.annotations, [ISOLATION_ANNOTATION]: isolation.report };
}

/** What the supervisor reported about isolation, as the `Isolation` condition. Layer names and details come from our own host, yet are escaped. */
export function isolationCondition(report: IsolationReport): ConditionFacts {
  const missing = report.layers.filter((layer) => !layer.enforced);
  const tested = report.layers.filter((layer) => layer.tested).map(({ name }) => escapeUntrusted(name, 64));
  const text = (layer: { name: string; detail: string }) =>
    escapeUntrusted(layer.detail === "" ? layer.name : `${layer.name} (${layer.detail})`, 200);
  const how = [
    `network capture: ${escapeUntrusted(report.captureMode, 64)}`,
    ...(tested.length === 0 ? [] : [`tested: ${tested.join(", ")}`]),
  ].join("; ");
  return missing.length === 0
    ? { type: "Isolation", status: "True", reason: "Complete", message: how }
    : {
        type: "Isolation",
        status: "False",
        reason: "Reduced",
        message: `not in force: ${missing.map(text).join(", ")}; ${how}`,
      };
}

const REASONS: Readonly<Record<string, ReadyReason>> = {
  isolation_breached: "IsolationBreached",
  isolation_below_minimum: "IsolationBelowMinimum",
  canaries_unanswered: "IsolationNotProven",
};

/** Why a start failed, when it was for isolation. */
export function isolationReason(code: string | undefined): ReadyReason | undefined {
  return code === undefined ? undefined : REASONS[code];
}

import { missingInAnswer } from "../context.ts";
import type { Style } from "../output/style.ts";
import { cell, formatTime } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { ISOLATION_ANNOTATION, type IsolationView, isolationLines, isolationView } from "./isolation.ts";

/** A sandbox as the gateway's JSON gives it. */
export interface SandboxView {
  readonly id: string;
  readonly name: string;
  readonly workspace: string;
  readonly phase: Phase;
  readonly created: string | undefined;
  readonly resourceVersion: string;
  readonly labels: Readonly<Record<string, string>>;
  /** Without the isolation report. */
  readonly annotations: Readonly<Record<string, string>>;
  readonly isolation: IsolationView | undefined;
  readonly spec: Json;
  readonly status: Json;
  readonly conditions: readonly Json[];
}

/** As people read it: `Ready`, `Provisioning`, … */
export type Phase = string;

export function sandboxView(message: unknown): SandboxView {
  const sandbox = object(message);
  const metadata = object(sandbox["metadata"]);
  if (typeof metadata["name"] !== "string") throw missingInAnswer("sandbox");
  const status = object(sandbox["status"]);
  const { [ISOLATION_ANNOTATION]: report, ...annotations } = object(metadata["annotations"]) as Record<string, string>;
  return {
    id: text(metadata["id"]),
    name: metadata["name"],
    workspace: text(metadata["workspace"]),
    phase: phaseName(status["phase"]),
    created: typeof metadata["createdTime"] === "string" ? metadata["createdTime"] : undefined,
    resourceVersion: text(metadata["resourceVersion"]) || "0",
    labels: object(metadata["labels"]) as Record<string, string>,
    annotations,
    isolation: report === undefined ? undefined : isolationView({ [ISOLATION_ANNOTATION]: report }),
    spec: object(sandbox["spec"]),
    status,
    conditions: Array.isArray(status["conditions"]) ? status["conditions"].map(object) : [],
  };
}

/** `SANDBOX_PHASE_READY` → `Ready`. */
export function phaseName(value: unknown): Phase {
  const word = typeof value === "string" ? value.replace(/^SANDBOX_PHASE_/, "").toLowerCase() : "unspecified";
  return word.replace(/(^|_)([a-z])/g, (_match, _start, letter: string) => letter.toUpperCase());
}

export function paintPhase(phase: Phase, style: Style): (text: string) => string {
  if (phase === "Ready") return style.green;
  if (phase === "Error") return style.red;
  if (phase === "Provisioning" || phase === "Starting") return style.yellow;
  if (phase === "Deleting" || phase === "Stopping") return style.dim;
  return (text) => text;
}

/** `reason: message` of the condition that says why a sandbox is not ready; undefined when there is none. */
export function notReadyReason(view: SandboxView): string | undefined {
  const ready = view.conditions.find((condition) => condition["type"] === "Ready" && condition["status"] !== "True");
  if (ready === undefined) return undefined;
  return `${cell(ready["reason"])}: ${cell(ready["message"])}`;
}

/** What the policy in force needs and does not have; undefined where nothing is missing. */
export function missingPart({ conditions }: SandboxView): string | undefined {
  const current = conditions.find(({ type }) => type === "PolicyCurrent");
  return current?.["reason"] === "Degraded" && current["status"] === "False" ? text(current["message"]) : undefined;
}

/** The main process has ended and is started again at a time that is known. */
export function awaitsRestart(view: SandboxView): boolean {
  return view.status["nextRestartTime"] !== undefined;
}

/** The main process ran and has ended by itself. */
export function hasRun(view: SandboxView): boolean {
  if (view.phase === "Completed" || awaitsRestart(view)) return true;
  return view.phase === "Error" && view.conditions.some(({ reason }) => reason === "MainProcessFailed");
}

/** The structured form of a sandbox (`-o json`, `-o yaml`). */
export function sandboxObject(view: SandboxView): Json {
  const { status } = view;
  return {
    id: view.id,
    name: view.name,
    workspace: view.workspace,
    labels: view.labels,
    annotations: view.annotations,
    resource_version: Number(view.resourceVersion),
    created_at: view.created ?? null,
    phase: view.phase,
    current_policy_version: Number(status["currentPolicyVersion"] ?? 0),
    command: view.spec["command"] ?? [],
    providers: view.spec["providers"] ?? [],
    exit_code: status["exitCode"] ?? null,
    restart_count: Number(status["restartCount"] ?? 0),
    next_restart_time: status["nextRestartTime"] ?? null,
    main_process_started_time: status["mainProcessStartedTime"] ?? null,
    conditions: view.conditions.map((condition) => ({
      type: condition["type"] ?? "",
      status: condition["status"] ?? "",
      reason: condition["reason"] ?? "",
      message: condition["message"] ?? "",
      transition_time: condition["transitionTime"] ?? null,
    })),
    isolation: view.isolation ?? null,
    endpoint_statuses: (Array.isArray(status["endpointStatuses"]) ? status["endpointStatuses"] : []).map(
      endpointStatus,
    ),
  };
}

function endpointStatus(message: unknown): Json {
  const endpoint = object(message);
  const words = text(endpoint["lastResult"])
    .replace(/^ENDPOINT_RESULT_/, "")
    .toLowerCase()
    .split("_");
  return {
    endpoint_id: endpoint["endpointId"] ?? "",
    host: endpoint["host"] ?? "",
    path: endpoint["path"] ?? "",
    ports: endpoint["ports"] ?? [],
    last_result:
      words.map((word) => (word === "" ? "" : word[0]!.toUpperCase() + word.slice(1))).join("") || "Unspecified",
    last_reported_at: endpoint["lastReportedTime"] ?? null,
  };
}

/** Label and value of each line of the detail view. */
export function sandboxLines(view: SandboxView, style: Style): [string, string][] {
  const pairs = (map: Readonly<Record<string, string>>): string =>
    Object.entries(map)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, value]) => `${cell(key)}=${cell(value)}`)
      .join(", ") || "-";
  const lines: [string, string][] = [
    ["Id", cell(view.id)],
    ["Name", cell(view.name)],
    ["Phase", paintPhase(view.phase, style)(view.phase)],
  ];
  const reason = notReadyReason(view);
  if (reason !== undefined) lines.push(["Reason", reason]);
  if (view.status["exitCode"] !== undefined) lines.push(["Exit code", String(view.status["exitCode"])]);
  const restarts = Number(view.status["restartCount"] ?? 0);
  if (restarts > 0) lines.push(["Restarts", String(restarts)]);
  if (awaitsRestart(view)) lines.push(["Next restart", formatTime(text(view.status["nextRestartTime"]))]);
  const command = Array.isArray(view.spec["command"]) ? view.spec["command"].map(String).join(" ") : "";
  lines.push(
    ["Created", formatTime(view.created)],
    ["Command", cell(command)],
    ["Providers", Array.isArray(view.spec["providers"]) ? view.spec["providers"].map(cell).join(", ") : "-"],
    ["Resource version", view.resourceVersion],
    ["Labels", pairs(view.labels)],
    ["Annotations", pairs(view.annotations)],
  );
  for (const condition of view.conditions) {
    if (condition["type"] === "Ready" || (condition["type"] === "Isolation" && view.isolation !== undefined)) continue;
    const good = condition["status"] === "True";
    const value = `${good ? "yes" : String(condition["status"]).toLowerCase()}, ${cell(condition["reason"])}: ${cell(condition["message"])}`;
    lines.push([cell(condition["type"]), good ? value : style.yellow(value)]);
  }
  if (view.isolation !== undefined) {
    const { layers } = view.isolation;
    const missing = layers.filter(({ enforced }) => !enforced).length;
    const state = missing === 0 ? "complete" : style.yellow(`${missing} of ${layers.length} layers are not in force`);
    lines.push(["Isolation", state], ...isolationLines(view.isolation, style));
  }
  return lines;
}

export function object(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

export function text(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

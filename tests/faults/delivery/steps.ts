import type {
  ConfigUpdate,
  ConfigUpdateResult,
  HostDownlink,
  HostUplink,
  SupervisorDownlink,
  SupervisorUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { ConfigComponent } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/** What the messages between gateway and hosts are called in plans and tables. */

/** By phase, in the order in which they are passed. `attach` and `detach`: of a provider. */
export const STEPS = {
  "start-up": [
    "attach",
    "hello",
    "candidate",
    "prepared",
    "accepted",
    "bootstrapResult",
    "admitted",
    "ready",
    "readiness",
  ],
  update: ["update(environment)", "update(config)", "updateResult(environment)", "updateResult(config)", "readiness"],
  attach: ["update(environment)", "update(config)", "updateResult(environment)", "updateResult(config)", "readiness"],
  detach: ["update(environment)", "update(config)", "updateResult(environment)", "updateResult(config)", "readiness"],
  host: ["hostHello", "hostAccepted"],
  end: ["end", "mainExit", "mainExitRecorded", "detach", "detached"],
} as const;
export type PhaseName = keyof typeof STEPS;
export const PHASES = Object.keys(STEPS) as PhaseName[];
export type StepName = (typeof STEPS)[PhaseName][number];

export function hostStep(message: HostUplink | HostDownlink): string {
  const { case: name } = message.message;
  if (name === "hello") return "hostHello";
  return name === "accepted" ? "hostAccepted" : (name ?? "unknown");
}

export function supervisorStep(message: SupervisorUplink | SupervisorDownlink): string {
  const { case: name, value } = message.message;
  if (name === "update") {
    const component = (value as ConfigUpdate).component.case;
    return component === "providerEnvironment" ? "update(environment)" : "update(config)";
  }
  if (name === "updateResult") {
    const { component } = value as ConfigUpdateResult;
    return component === ConfigComponent.PROVIDER_ENVIRONMENT ? "updateResult(environment)" : "updateResult(config)";
  }
  return name ?? "unknown";
}

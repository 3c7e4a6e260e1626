import type { RuntimeError } from "@openshell/base";
import type { IsolationLayer } from "@openshell/boundary";
import { Finding, type OcsfEvent } from "@openshell/ocsf";

/** What the isolation of one sandbox gives reason to say. */
export interface IsolationFinding {
  readonly uid: string;
  readonly title: string;
  readonly description: string;
  readonly next: string;
  readonly severity: "low" | "high" | "critical";
}

/** A layer claims to hold and does not. */
export function breachFinding(error: RuntimeError): IsolationFinding {
  const title = "A sandbox was not started: its isolation does not hold";
  return { uid: Finding.isolationBreached, title, description: error.message, next: error.next, severity: "critical" };
}

/** Less is in force than was demanded. */
export function minimumFinding(error: RuntimeError): IsolationFinding {
  const title = "A sandbox was not started: less isolation than demanded";
  return { uid: Finding.isolationBelowMinimum, title, description: error.message, next: error.next, severity: "high" };
}

/** Started, with less than everything. Without Landlock the policy's paths are not enforced, which weighs more. */
export function reducedFinding(layers: readonly IsolationLayer[]): IsolationFinding {
  const withoutLandlock = layers.some(({ name }) => name === "landlock");
  const list = layers.map(({ name, detail }) => (detail === "" ? name : `${name} (${detail})`)).join(", ");
  return {
    uid: withoutLandlock ? Finding.landlockUnavailable : Finding.isolationReduced,
    title: withoutLandlock
      ? "The policy's paths are not enforced by the kernel"
      : "Not every isolation layer is in force",
    description: `not in force: ${list}`,
    next: "openshell sandbox get shows the report; --minimum-isolation refuses less",
    severity: withoutLandlock ? "high" : "low",
  };
}

export function isolationEvent(finding: IsolationFinding, time: number, redact: (text: string) => string): OcsfEvent {
  return {
    class: "finding",
    time,
    activity: "create",
    severity: finding.severity,
    uid: finding.uid,
    title: finding.title,
    description: redact(finding.description),
    remediation: finding.next,
    confidence: "high",
    isAlert: finding.severity === "critical",
  };
}

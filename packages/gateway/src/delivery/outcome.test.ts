import { ConfigApplyOutcome as Outcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import { isInForce, type Verdict, verdictOf } from "./outcome.ts";

describe("the outcome of an update", () => {
  const revisions = { requested: "r2", none: "", another: "r1" } as const;
  type Named = keyof typeof revisions;
  const rows: readonly [keyof typeof Outcome, Partial<Record<Named, Verdict>>][] = [
    ["APPLIED", { requested: "acknowledged" }],
    ["IGNORED_DUPLICATE", { requested: "acknowledged" }],
    ["DEGRADED", { requested: "acknowledged" }],
    ["RETAINED_LOCAL_OVERRIDE", { none: "acknowledged" }],
    ["AWAITING_COMPONENT", { none: "staged" }],
    ["FAILED_CLOSED", { none: "rejected" }],
    ["FAILED_RETAINED_LAST_KNOWN_GOOD", { another: "rejected" }],
    ["IGNORED_STALE", { requested: "unacknowledged", none: "unacknowledged", another: "unacknowledged" }],
    ["UNSUPPORTED", { requested: "unacknowledged", none: "unacknowledged", another: "unacknowledged" }],
    ["UNSPECIFIED", {}],
  ];
  const cases = rows.flatMap(([outcome, right]) =>
    (Object.keys(revisions) as Named[]).map((named) => [outcome, named, right[named] ?? "invalid"] as const),
  );

  it.each(cases)("%s that names the revision %s is %s", (outcome, named, verdict) => {
    expect(verdictOf({ outcome: Outcome[outcome], appliedRevision: revisions[named] }, "r2")).toBe(verdict);
  });

  it("is invalid when nobody knows it", () => {
    expect(verdictOf({ outcome: 77 as Outcome, appliedRevision: "r2" }, "r2")).toBe("invalid");
  });

  it("is in force when it was applied, also in part", () => {
    const inForce = Object.values(Outcome).filter((value) => typeof value === "number" && isInForce(value));
    expect(inForce).toEqual([Outcome.APPLIED, Outcome.IGNORED_DUPLICATE, Outcome.DEGRADED]);
  });
});

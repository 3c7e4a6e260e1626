import { create } from "@bufbuild/protobuf";
import {
  ProviderDesiredIdentitySchema,
  ProviderReadinessReason as Reason,
  ProviderReadinessState as State,
} from "@openshell/api";
import { ReadinessObservationSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import { evaluate, type Facts } from "./evaluate.ts";

const desired = create(ProviderDesiredIdentitySchema, {
  sandboxId: "s",
  attachmentEpoch: "e",
  providerId: "p",
  providerResourceVersion: 3n,
  providerEnvRevision: 0xaan,
  configRevision: 0xbbn,
  policyHash: "h",
});
const observation = create(ReadinessObservationSchema, {
  sessionId: "session",
  sequence: 1n,
  attachmentEpoch: "e",
  providerRevision: "00000000000000aa",
  configRevision: "00000000000000bb",
  policyHash: "h",
  credentialsInstalled: true,
  policyActive: true,
  launchEnvironmentInstalled: true,
  processInstanceId: "process",
});
const evidence = { observation, instanceId: "instance", observedAt: 1, expired: false };
const ready: Facts = {
  desired,
  current: desired,
  withheld: undefined,
  running: true,
  session: { sessionId: "session", instanceId: "instance" },
  evidence,
};
const observed = (changes: object): Partial<Facts> => ({
  evidence: { ...evidence, observation: { ...observation, ...changes } },
});
const failed = (code: string) =>
  observed({
    failure: { $typeName: "openshell.supervisor.v1.Failure", code, message: "", next: "", retryable: false },
  });
const states = Object.entries(State).filter(([, value]) => typeof value === "number");
const nameOf = (value: number, names: object) => Object.entries(names).find(([, other]) => other === value)?.[0];

describe("readiness of a provider's change", () => {
  it("is READY when session, identity and all three parts agree, and REVOKED when the provider shall be gone", () => {
    expect(states.length).toBe(8);
    expect(evaluate(ready)).toEqual({ state: State.READY, reason: Reason.UNSPECIFIED });
    const gone = { ...desired, providerId: "", providerResourceVersion: 0n };
    expect(evaluate({ ...ready, desired: gone, current: gone })).toEqual({
      state: State.REVOKED,
      reason: Reason.UNSPECIFIED,
    });
  });

  // In the order of evaluation: each row also has everything wrong that the rows below it have.
  const rows: readonly [string, Partial<Facts>, State, Reason][] = [
    ["nothing wanted is known", { desired: undefined }, State.FAILED, Reason.SNAPSHOT_MISMATCH],
    ["a later change", { current: { ...desired, configRevision: 1n } }, State.SUPERSEDED, Reason.DESIRED_STATE_CHANGED],
    ["the current state cannot be read", { current: undefined }, State.FAILED, Reason.SNAPSHOT_MISMATCH],
    ["withheld", { withheld: "credentials" }, State.WITHHELD, Reason.CREDENTIALS_WITHHELD],
    ["expired", { withheld: "expired" }, State.WITHHELD, Reason.CREDENTIAL_EXPIRED],
    ["credentials failed", failed("invalid_provider_environment"), State.FAILED, Reason.CREDENTIAL_INSTALL_FAILED],
    ["the policy failed", failed("invalid_policy"), State.FAILED, Reason.POLICY_ACTIVATION_FAILED],
    ["something else failed", failed("other"), State.FAILED, Reason.PROCESS_INSTALL_FAILED],
    ["stopped", { running: false }, State.PENDING, Reason.WAITING_FOR_SUPERVISOR],
    ["no session", { session: undefined }, State.PENDING, Reason.SUPERVISOR_DISCONNECTED],
    ["no evidence", { evidence: undefined }, State.PENDING, Reason.WAITING_FOR_SUPERVISOR],
    ["evidence of another session", observed({ sessionId: "old" }), State.PENDING, Reason.WAITING_FOR_SUPERVISOR],
    [
      "evidence of another instance",
      { evidence: { ...evidence, instanceId: "old" } },
      State.PENDING,
      Reason.WAITING_FOR_SUPERVISOR,
    ],
    ["old evidence", { evidence: { ...evidence, expired: true } }, State.PENDING, Reason.SUPERVISOR_LEASE_EXPIRED],
    ["another set of providers", observed({ attachmentEpoch: "x" }), State.PENDING, Reason.WAITING_FOR_CREDENTIALS],
    ["another environment", observed({ providerRevision: "01" }), State.PENDING, Reason.WAITING_FOR_CREDENTIALS],
    ["no credentials", observed({ credentialsInstalled: false }), State.PENDING, Reason.WAITING_FOR_CREDENTIALS],
    ["another policy", observed({ policyHash: "x" }), State.PENDING, Reason.WAITING_FOR_POLICY],
    ["another configuration", observed({ configRevision: "01" }), State.PENDING, Reason.WAITING_FOR_POLICY],
    ["no policy", observed({ policyActive: false }), State.PENDING, Reason.WAITING_FOR_POLICY],
    ["no environment", observed({ launchEnvironmentInstalled: false }), State.PENDING, Reason.WAITING_FOR_PROCESS],
    ["no process", observed({ processInstanceId: "" }), State.PENDING, Reason.WAITING_FOR_PROCESS],
  ];

  it.each(rows)("%s", (_, facts, state, reason) => {
    const { state: found, reason: why } = evaluate({ ...ready, ...facts });
    expect([nameOf(found, State), nameOf(why, Reason)]).toEqual([nameOf(state, State), nameOf(reason, Reason)]);
  });

  it("is decided by the first of these that applies", () => {
    const independent = rows.filter(([, facts]) => !("evidence" in facts)).map(([, facts]) => facts);
    for (const [index, first] of independent.entries()) {
      for (const later of independent.slice(index + 1)) {
        if (Object.keys(later).some((key) => key in first)) continue;
        expect(evaluate({ ...ready, ...later, ...first })).toEqual(evaluate({ ...ready, ...first }));
      }
    }
  });
});

import { inspect } from "node:util";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  type ProviderEnvironment,
  ProviderEnvironmentSchema,
  ProviderValue_Classification,
  type SandboxConfig,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { systemClock } from "@openshell/base";
import { CredentialState } from "@openshell/credentials";
import { type OcsfEvent, shorthand } from "@openshell/ocsf";
import { beforeEach, describe, expect, it } from "vitest";
import { Fields } from "../egress/http1/fields.ts";
import { registered, Services } from "../middleware/testing/services.ts";
import { ReadinessTracker } from "../session/readiness.ts";
import type { CompiledConfiguration } from "./compile.ts";
import { createCompiler } from "./compiler.ts";
import { createConfigEvents } from "./config-events.ts";
import { ConfigurationController } from "./controller.ts";
import type { Settings } from "./settings.ts";

const O = ConfigApplyOutcome;
const nowhere = (): Promise<string> => Promise.reject(new Error("ENOENT"));

/** One policy a hash; `bad` cannot be enforced. */
function config(revision: string, more: MessageInitShape<typeof SandboxConfigSchema> = {}): SandboxConfig {
  const bad = more.policyHash?.startsWith("bad") ?? false;
  return create(SandboxConfigSchema, {
    configRevision: revision,
    policyVersion: 1,
    policyHash: "h1",
    attachmentEpoch: "e1",
    providerRevision: "p1",
    policy: create(SandboxPolicySchema, {
      version: 1,
      networkPolicies: {
        api: {
          name: "api",
          endpoints: [{ host: bad ? "" : "api.example.com", port: 443, protocol: bad ? "nonsense" : "" }],
          binaries: [{ path: "/usr/bin/curl" }],
        },
      },
    }),
    ...more,
  });
}

function environment(
  more: MessageInitShape<typeof ProviderEnvironmentSchema> = {},
  value = "secret-of-p1",
): ProviderEnvironment {
  return create(ProviderEnvironmentSchema, {
    attachmentEpoch: "e1",
    providerRevision: "p1",
    policyHash: "h1",
    values: [
      {
        name: "KEY",
        value,
        classification: ProviderValue_Classification.STATIC_CREDENTIAL,
        endpoints: [{ host: "api.example.com", port: 443, path: "" }],
        credentialIdentity: "provider-1:KEY",
        provider: "acme",
      },
    ],
    ...more,
  });
}
/** A credential without identity: nothing of its environment may be used. */
const unusable = (more: MessageInitShape<typeof ProviderEnvironmentSchema> = {}): ProviderEnvironment => {
  const message = environment(more);
  message.values[0]!.credentialIdentity = "";
  return message;
};

describe("configuration of one sandbox", () => {
  let published: CompiledConfiguration[];
  let events: OcsfEvent[];
  let settings: Settings[];
  let readiness: ReadinessTracker;
  let controller: ConfigurationController;
  let middleware: Services;

  beforeEach(() => {
    published = [];
    events = [];
    settings = [];
    readiness = new ReadinessTracker();
    const credentials = new CredentialState();
    middleware = new Services();
    controller = new ConfigurationController({
      egress: { publish: async (configuration) => void published.push(configuration) },
      middleware: middleware.manager,
      compile: createCompiler(credentials, () => 0, nowhere),
      events: createConfigEvents(
        (event) => events.push(event),
        systemClock,
        (text) => credentials.redact(text),
      ),
      readiness,
      onSettings: (changed) => settings.push(changed),
    });
  });

  const lines = (): string[] => events.map(shorthand);
  const inForce = (): CompiledConfiguration => published.at(-1)!;
  const connect = () =>
    inForce().policy.connect({
      host: "api.example.com",
      port: 443,
      process: { exe: "/usr/bin/curl", ancestors: [] },
    });
  /** What a request with this placeholder gets. */
  const injected = (placeholder: string): string => {
    const fields = new Fields();
    fields.add("Authorization", placeholder);
    const result = inForce().credentials.rewrite({
      host: "api.example.com",
      port: 443,
      path: "/",
      query: undefined,
      secure: true,
      allowUninspected: false,
      provider: undefined,
      fields,
    });
    if (result.kind === "injected") return result.fields.values[0]!;
    return result.kind === "denied" ? result.code : "none";
  };
  async function start(): Promise<void> {
    const outcome = await controller.bootstrap(config("c1"), environment());
    expect(outcome.accepted).toBe(true);
  }
  const update = (component: SandboxConfig | ProviderEnvironment) =>
    controller.update(
      component.$typeName === "openshell.supervisor.v1.SandboxConfig"
        ? { config: component as SandboxConfig }
        : { environment: component as ProviderEnvironment },
    );
  const apply = async (component: SandboxConfig | ProviderEnvironment) => (await update(component)).result;

  describe("start-up", () => {
    it("reports what it installed, so that the first look after it finds nothing to do (seed-003)", async () => {
      await start();
      expect(readiness.facts).toMatchObject({
        attachmentEpoch: "e1",
        providerRevision: "p1",
        configRevision: "c1",
        policyHash: "h1",
        credentialsInstalled: true,
        policyActive: true,
        launchEnvironmentInstalled: true,
        problem: undefined,
      });
      for (const component of [config("c1"), environment(), config("c1")])
        expect((await apply(component)).outcome).toBe(O.IGNORED_DUPLICATE);
      expect((await controller.bootstrap(config("c1"), environment())).accepted).toBe(true);
      expect(published).toHaveLength(1);
      expect(lines()).toEqual([]);
    });
    it("finds a real change at the first look, also without any provider (seed-003)", async () => {
      const none = { providerRevision: "none", values: [] };
      await controller.bootstrap(config("c1", { providerRevision: "none" }), environment(none));
      const changed = config("c2", { providerRevision: "none", policyHash: "h2" });
      expect(await apply(changed)).toMatchObject({ outcome: O.AWAITING_COMPONENT });
      expect(await apply(environment({ ...none, policyHash: "h2" }))).toMatchObject({ outcome: O.APPLIED });
      expect(published).toHaveLength(2);
    });
    it("puts nothing in force when either half cannot be", async () => {
      const bad = await controller.bootstrap(config("c1", { policyHash: "bad" }), environment({ policyHash: "bad" }));
      expect(bad).toMatchObject({
        accepted: false,
        sandboxConfig: { outcome: O.FAILED_CLOSED, appliedRevision: "", failure: { code: "invalid_policy" } },
        providerEnvironment: { outcome: O.FAILED_CLOSED, failure: { code: "configuration_rejected" } },
      });
      expect(await controller.bootstrap(config("c1"), unusable())).toMatchObject({
        accepted: false,
        sandboxConfig: { outcome: O.FAILED_CLOSED, failure: { code: "configuration_rejected" } },
        providerEnvironment: { outcome: O.FAILED_CLOSED, failure: { code: "invalid_provider_environment" } },
      });
      expect(published).toEqual([]);
      expect(controller.childEnvironment).toEqual({});
      expect(readiness.facts).toMatchObject({ credentialsInstalled: false, policyActive: false });
    });
    it("is closed where nothing was valid before, whatever the failure mode says", async () => {
      const retain = { policyHash: "bad", validationFailureMode: "retain_last_valid" };
      const outcome = await controller.bootstrap(config("c1", retain), environment({ policyHash: "bad" }));
      expect(outcome.sandboxConfig).toMatchObject({ outcome: O.FAILED_CLOSED, appliedRevision: "" });
    });
    it("refuses halves that do not belong together", async () => {
      await expect(controller.bootstrap(config("c1"), environment({ attachmentEpoch: "e2" }))).rejects.toThrow(
        "do not belong together",
      );
      expect(published).toEqual([]);
    });
    it("activates no settings of a configuration that was not admitted (GATOR-c10f3724-04)", async () => {
      const on = { ocsf_json_enabled: "true" };
      await controller.bootstrap(config("c1", { policyHash: "bad", settings: on }), environment({ policyHash: "bad" }));
      expect(settings).toEqual([]);
      await start();
      await apply(config("c2", { policyHash: "bad", settings: on }));
      expect(settings).toEqual([{}]);
    });
  });

  describe("pairs", () => {
    beforeEach(start);
    const second = { attachmentEpoch: "e2", providerRevision: "p2", policyHash: "h2" };
    const c2 = () => config("c2", second);
    const e2 = () => environment(second, "secret-of-p2");

    it.each([
      ["environment first", () => [e2(), c2()]],
      ["configuration first", () => [c2(), e2()]],
    ])("are put in force in one publication: %s", async (_, halves) => {
      const [first, last] = halves();
      expect(await apply(first!)).toMatchObject({ outcome: O.AWAITING_COMPONENT, appliedRevision: "" });
      expect(published).toHaveLength(1);
      expect(readiness.facts.providerRevision).toBe("p1");
      const { result, counterpart } = await update(last!);
      expect([result.outcome, counterpart?.outcome]).toEqual([O.APPLIED, O.APPLIED]);
      expect([result.appliedRevision, counterpart?.appliedRevision].toSorted()).toEqual(["c2", "p2"]);
      expect(published).toHaveLength(2);
      expect(injected(inForce().childEnvironment["KEY"]!)).toBe("secret-of-p2");
      expect(readiness.facts).toMatchObject({ providerRevision: "p2", configRevision: "c2", policyHash: "h2" });
      // The half that waited is sent again: it is in force already.
      expect((await apply(first!)).outcome).toBe(O.IGNORED_DUPLICATE);
      expect(published).toHaveLength(2);
    });
    it("say nothing of a half that did not wait", async () => {
      const alone = [config("c3"), environment(), config("x", { policyHash: "h9" })];
      for (const half of alone) expect((await update(half)).counterpart).toBeUndefined();
    });
    it("wait for the same epoch, revision and policy: one part in common is not enough", async () => {
      await apply(e2());
      for (const [at, part] of [{ attachmentEpoch: "e1" }, { providerRevision: "p3" }, { policyHash: "h3" }].entries())
        expect((await apply(config(`x${at}`, { ...second, ...part }))).outcome).toBe(O.AWAITING_COMPONENT);
      expect(published).toHaveLength(1);
      expect((await apply(c2())).outcome).toBe(O.APPLIED);
    });
    it("take the newest of what waits", async () => {
      await apply(e2());
      const third = { ...second, providerRevision: "p3" };
      await apply(environment(third, "secret-of-p3"));
      expect((await apply(c2())).outcome).toBe(O.AWAITING_COMPONENT);
      expect((await apply(config("c3", third))).outcome).toBe(O.APPLIED);
      expect(injected(inForce().childEnvironment["KEY"]!)).toBe("secret-of-p3");
      expect(published).toHaveLength(2);
    });
    it("do not come about with provider state of another policy (GATOR-c10f3724-02)", async () => {
      expect((await apply(environment({ policyHash: "h2" }, "secret-of-p1"))).outcome).toBe(O.AWAITING_COMPONENT);
      expect(readiness.facts.policyHash).toBe("h1");
      expect(published).toHaveLength(1);
    });
    it("are decided by the last word of the gateway, also when that is what is in force", async () => {
      await apply(c2());
      expect((await apply(config("c1"))).outcome).toBe(O.IGNORED_DUPLICATE);
      expect((await apply(e2())).outcome).toBe(O.AWAITING_COMPONENT);
      expect(published).toHaveLength(1);
    });
  });

  describe("changes", () => {
    beforeEach(start);

    it("acknowledges a newer version of the same rules without reloading them (#2518, #2557)", async () => {
      const newer = config("c2", { policyVersion: 7 });
      expect(await apply(newer)).toMatchObject({ outcome: O.APPLIED, appliedRevision: "c2" });
      expect(published).toHaveLength(1);
      expect(lines()).toEqual([]);
      expect(readiness.facts.configRevision).toBe("c2");
    });
    it("tells each change once", async () => {
      const next = { policyHash: "h2", providerRevision: "p2" };
      await apply(environment(next, "secret-of-p2"));
      await apply(config("c2", { ...next, settings: { a: "1" } }));
      expect(lines()).toEqual([
        "CONFIG:DETECTED [INFO] Config change detected [old_revision:c1 new_revision:c2 policy_changed:true provider_env_changed:true]",
        "CONFIG:LOADED [INFO] Policy reloaded successfully [policy_hash:h2]",
        "CONFIG:LOADED [INFO] Provider environment refreshed [revision:p2 env_count:1]",
        "CONFIG:CONFIGURED [INFO] Setting added [key:a value:1]",
      ]);
    });
    it("names the version of a policy that holds for all sandboxes", async () => {
      await apply(environment({ policyHash: "h2" }));
      await apply(config("c2", { policyHash: "h2", policySource: "global", globalPolicyVersion: 4 }));
      expect(lines()).toContain(
        "CONFIG:LOADED [INFO] Policy reloaded successfully (global) [policy_hash:h2 global_version:4]",
      );
    });
    it("takes up settings, and tells what changed", async () => {
      await apply(config("c2", { settings: { ocsf_json_enabled: "true", other: "x" } }));
      await apply(config("c3", { settings: { ocsf_json_enabled: "false" } }));
      expect(settings).toEqual([{}, { ocsf_json_enabled: "true", other: "x" }, { ocsf_json_enabled: "false" }]);
      expect(lines()).toEqual([
        "CONFIG:CONFIGURED [INFO] Setting added [key:ocsf_json_enabled value:true]",
        "CONFIG:CONFIGURED [INFO] Setting added [key:other value:x]",
        "CONFIG:CONFIGURED [INFO] Setting changed [key:ocsf_json_enabled old:true new:false]",
        "CONFIG:CONFIGURED [INFO] Setting removed [key:other]",
      ]);
      expect(published).toHaveLength(1);
    });
    it("is unavailable before a configuration was accepted", async () => {
      const fresh = new ConfigurationController({
        egress: { publish: async () => {} },
        middleware: new Services().manager,
        compile: createCompiler(new CredentialState(), () => 0, nowhere),
        events: createConfigEvents(() => {}, systemClock, String),
        readiness: new ReadinessTracker(),
        onSettings: () => {},
      });
      for (const component of [{ config: config("c1") }, { environment: environment() }])
        expect(await fresh.update(component)).toMatchObject({
          result: { outcome: O.UNSUPPORTED, failure: { code: "apply_unavailable" } },
        });
    });
    it("keeps the placeholders of running processes over nine rotations of one credential (#2510)", async () => {
      const held = inForce().childEnvironment["KEY"]!;
      for (let rotation = 1; rotation <= 9; rotation++) {
        const providerRevision = `r${rotation}`;
        await apply(environment({ providerRevision }, `rotated-value-${rotation}`));
        await apply(config(`c-r${rotation}`, { providerRevision }));
        expect(injected(held)).toBe(`rotated-value-${rotation}`);
      }
    });
    it("lets no placeholder fall forward to a credential of another identity", async () => {
      const held = inForce().childEnvironment["KEY"]!;
      const other = environment({ providerRevision: "p2" }, "value-of-another");
      other.values[0]!.credentialIdentity = "provider-2:KEY";
      await apply(other);
      await apply(config("c2", { providerRevision: "p2" }));
      expect(injected(held)).toBe("credential_unavailable");
      expect(inForce().childEnvironment["KEY"]).not.toBe(held);
    });
  });

  describe("a policy that cannot be enforced", () => {
    beforeEach(start);
    const bad = (mode: string, revision = "c2", version = 2) =>
      config(revision, { policyHash: "bad", policyVersion: version, validationFailureMode: mode });

    it.each(["", "fail_closed", "unknown"])("closes everything, and says why, under the mode %j", async (mode) => {
      expect(await apply(bad(mode))).toMatchObject({
        outcome: O.FAILED_CLOSED,
        appliedRevision: "",
        failure: { code: "invalid_policy" },
      });
      expect(connect()).toMatchObject({
        allowed: false,
        reason: expect.stringMatching(
          /^policy validation failed; fail-closed quarantine is active; candidate version 2 rejected: ./,
        ),
      });
      expect(injected(inForce().childEnvironment["KEY"]!)).toBe("credential_unavailable");
      expect(readiness.facts).toMatchObject({
        policyActive: false,
        credentialsInstalled: false,
        problem: { code: "invalid_policy" },
      });
      expect(lines()).toEqual([
        expect.stringMatching(
          /^CONFIG:FAILED \[HIGH\] Policy was not applied: .* \[config_revision:c2 version:2 code:invalid_policy previous_policy_active:false\]$/,
        ),
      ]);
    });
    it("leaves the last valid one under retain_last_valid", async () => {
      expect(await apply(bad("retain_last_valid"))).toMatchObject({
        outcome: O.FAILED_RETAINED_LAST_KNOWN_GOOD,
        appliedRevision: "c1",
        failure: { code: "invalid_policy" },
      });
      expect(published).toHaveLength(1);
      expect(connect().allowed).toBe(true);
      expect(lines()[0]).toContain("previous_policy_active:true");
    });
    it("is told once, however often it is tried again", async () => {
      for (let attempt = 0; attempt < 3; attempt++)
        expect((await apply(bad("fail_closed"))).outcome).toBe(O.FAILED_CLOSED);
      expect(published).toHaveLength(2);
      expect(lines()).toHaveLength(1);
    });
    it("follows a changed mode at once, although it stays the same", async () => {
      await apply(bad("fail_closed"));
      expect((await apply(bad("retain_last_valid"))).outcome).toBe(O.FAILED_RETAINED_LAST_KNOWN_GOOD);
      expect(connect().allowed).toBe(true);
      await apply(bad("fail_closed"));
      expect(connect().allowed).toBe(false);
      expect(await apply(bad("retain_last_valid", "c3"))).toMatchObject({
        outcome: O.FAILED_RETAINED_LAST_KNOWN_GOOD,
        appliedRevision: "c1",
      });
      expect(connect().allowed).toBe(true);
      expect((await apply(bad("fail_closed", "c4"))).outcome).toBe(O.FAILED_CLOSED);
      expect(connect().allowed).toBe(false);
    });
    it("ends with the policy before it, unchanged to the byte", async () => {
      await apply(bad("fail_closed"));
      expect(await apply(config("c1"))).toMatchObject({ outcome: O.APPLIED, appliedRevision: "c1" });
      expect(connect().allowed).toBe(true);
      expect(readiness.facts).toMatchObject({ policyActive: true, credentialsInstalled: true, problem: undefined });
      expect(lines().at(-1)).toBe("CONFIG:LOADED [INFO] Policy reloaded successfully [policy_hash:h1]");
      expect((await apply(config("c1"))).outcome).toBe(O.IGNORED_DUPLICATE);
    });
    it("names the candidate that was rejected last", async () => {
      await apply(bad("fail_closed"));
      await apply(bad("fail_closed", "c3", 3));
      expect(connect()).toMatchObject({ reason: expect.stringContaining("candidate version 3 rejected") });
    });
    it("closes a running sandbox at a reconnect as well", async () => {
      const outcome = await controller.bootstrap(bad("fail_closed"), environment({ policyHash: "bad" }));
      expect(outcome.accepted).toBe(false);
      expect(connect().allowed).toBe(false);
    });
  });

  describe("a provider environment that cannot be used", () => {
    beforeEach(start);

    it("takes static credentials away at once, while the policy goes on", async () => {
      const held = inForce().childEnvironment["KEY"]!;
      expect(await apply(unusable({ providerRevision: "p2" }))).toMatchObject({
        outcome: O.FAILED_CLOSED,
        appliedRevision: "",
        failure: { code: "invalid_provider_environment" },
      });
      expect(injected(held)).toBe("credential_unavailable");
      expect(connect().allowed).toBe(true);
      expect(controller.childEnvironment).toEqual({});
      expect(readiness.facts).toMatchObject({ credentialsInstalled: false, launchEnvironmentInstalled: false });
      expect(lines()).toEqual([expect.stringMatching(/^CONFIG:FAIL_CLOSED \[HIGH\] .*revoked/)]);
      // Tried again: nothing to take away, nothing to tell.
      expect((await apply(unusable({ providerRevision: "p2" }))).outcome).toBe(O.FAILED_CLOSED);
      expect(published).toHaveLength(2);
      expect(lines()).toHaveLength(1);
    });
    it("does not hold back the policy that names it", async () => {
      const next = { providerRevision: "p2", policyHash: "h2" };
      await apply(unusable(next));
      expect((await apply(config("c2", next))).outcome).toBe(O.APPLIED);
      expect(injected("openshell:resolve:env:KEY")).toBe("credential_unavailable");
    });
    it("is replaced by the next good one, and processes go on with what they hold", async () => {
      const held = inForce().childEnvironment["KEY"]!;
      await apply(unusable());
      expect((await apply(environment())).outcome).toBe(O.APPLIED);
      expect(injected(held)).toBe("secret-of-p1");
      expect(readiness.facts.credentialsInstalled).toBe(true);
    });
  });

  it("shows no credential to whoever prints what it holds, in force or waiting", async () => {
    await start();
    await apply(environment({ providerRevision: "p2" }, "secret-of-p2"));
    await apply(config("c3", { attachmentEpoch: "e3" }));
    for (const thing of [controller, published, readiness, events]) {
      const shown = `${inspect(thing, { depth: 20, showHidden: true })}${JSON.stringify(thing)}`;
      expect(shown).not.toMatch(/secret-of/);
    }
  });

  it("puts nothing in force after its time is over", async () => {
    await start();
    const late = new AbortController();
    late.abort();
    for (const component of [{ config: config("c2", { policyHash: "h2" }) }, { environment: unusable() }])
      await expect(controller.update(component, late.signal)).rejects.toThrow();
    expect(published).toHaveLength(1);
    const problem = { code: "apply_timeout", message: "late", next: "" } as const;
    expect(controller.unapplied({ config: config("c2") }, problem)).toMatchObject({
      outcome: O.FAILED_RETAINED_LAST_KNOWN_GOOD,
      appliedRevision: "c1",
    });
    expect(controller.unapplied({ config: config("c1") }, problem)).toMatchObject({ outcome: O.FAILED_CLOSED });
  });

  describe("middleware services", () => {
    const named = (revision: string, names: readonly string[], port = 1, onError = "", hash = names.join()) =>
      config(revision, {
        policyHash: `h1 ${hash}`,
        middleware: names.map((name) => registered(name, port)),
        policy: {
          version: 1,
          networkPolicies: config("").policy!.networkPolicies,
          networkMiddlewares: Object.fromEntries(
            names.map((middleware, order) => [
              middleware,
              { middleware, order, onError, endpoints: { include: ["elsewhere.example.com"] } },
            ]),
          ),
        },
      });
    const paired = () => environment({ policyHash: "" });

    it.each(["", "fail_open"])(
      "all answer before anything of a start is active, also with on_error '%s'",
      async (onError) => {
        const outcome = await controller.bootstrap(named("c1", ["guard"], 1, onError), paired());
        expect(outcome).toMatchObject({
          accepted: false,
          sandboxConfig: { outcome: O.FAILED_CLOSED, failure: { code: "middleware_unreachable" } },
          providerEnvironment: { outcome: O.FAILED_CLOSED },
        });
        expect(outcome.sandboxConfig.failure?.message).toContain("'guard'");
        expect(published).toEqual([]);
        middleware.up.add("guard@1");
        await outcome.again;
        expect(await controller.bootstrap(named("c1", ["guard"], 1, onError), paired())).toMatchObject({
          accepted: true,
        });
        expect(inForce().middleware.services.has("guard")).toBe(true);
        expect(middleware.connections).toHaveLength(1);
        expect(lines().filter((line) => line.includes("FAILED"))).toHaveLength(1);
      },
    );

    it("that fail in a live change leave those that work, the workload and the new policy; tried again until whole", async () => {
      middleware.up.add("guard@1");
      await controller.bootstrap(named("c1", ["guard"]), paired());
      const guard = inForce().middleware.services.get("guard");
      const wanted = named("c2", ["guard", "scan"]);
      const first = await apply(wanted);
      expect(first).toMatchObject({
        outcome: O.DEGRADED,
        appliedRevision: "c2",
        failure: { code: "middleware_unreachable" },
      });
      expect(inForce().middleware.services.get("guard")).toBe(guard);
      expect(inForce().policy.policy.networkMiddlewares.has("scan")).toBe(true);
      expect(readiness.facts).toMatchObject({ configRevision: "c2", policyActive: true });
      const [publications, told] = [published.length, lines().length];
      // Again with the same end: nothing is published and nothing is told.
      expect((await apply(wanted)).outcome).toBe(O.DEGRADED);
      expect([published.length, lines().length]).toEqual([publications, told]);
      middleware.up.add("scan@1");
      expect((await apply(wanted)).outcome).toBe(O.APPLIED);
      expect([...inForce().middleware.services.keys()]).toEqual(["guard", "scan"]);
      expect((await apply(wanted)).outcome).toBe(O.IGNORED_DUPLICATE);
      expect(lines().filter((line) => line.includes("Middleware"))).toEqual([
        "CONFIG:LOADED [INFO] Middleware services loaded [services:guard]",
        expect.stringMatching(/^CONFIG:DEGRADED \[HIGH\] Middleware services are not complete: .*'scan'/),
        "CONFIG:LOADED [INFO] Middleware services loaded [services:guard,scan]",
      ]);
    });

    it("keep the connection that works when their new registration does not", async () => {
      middleware.up.add("guard@1");
      await controller.bootstrap(named("c1", ["guard"]), paired());
      const before = inForce().middleware.services.get("guard");
      expect((await apply(named("c2", ["guard"], 2))).outcome).toBe(O.DEGRADED);
      expect(inForce().middleware.services.get("guard")).toBe(before);
      expect(middleware.open).toEqual(["guard@1"]);
    });

    it("are not needed by a policy that cannot be enforced: what was in force stays whole", async () => {
      middleware.up.add("guard@1");
      await controller.bootstrap(named("c1", ["guard"]), paired());
      const broken = config("c2", { policyHash: "bad", validationFailureMode: "retain_last_valid" });
      expect((await apply(broken)).outcome).toBe(O.FAILED_RETAINED_LAST_KNOWN_GOOD);
      expect(inForce().middleware.services.has("guard")).toBe(true);
      expect(middleware.open).toEqual(["guard@1"]);
    });

    it("that are away when a running sandbox is taken up again do not keep it from running", async () => {
      middleware.up.add("guard@1");
      await controller.bootstrap(named("c1", ["guard"]), paired());
      const again = await controller.bootstrap(named("c2", ["guard"], 2), paired());
      expect(again).toMatchObject({ accepted: true, sandboxConfig: { outcome: O.DEGRADED, appliedRevision: "c2" } });
    });
  });
});

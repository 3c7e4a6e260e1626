import type {
  ComponentResult,
  ProviderEnvironment,
  SandboxConfig,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { RuntimeError } from "@openshell/base";
import type { CompiledPolicy } from "@openshell/policy";
import type { MiddlewareManager } from "../middleware/manager.ts";
import { type MiddlewareRegistry, NO_MIDDLEWARE } from "../middleware/registry.ts";
import type { ReadinessTracker } from "../session/readiness.ts";
import type {
  CompiledConfiguration,
  ConfigurationCompiler,
  ConfigurationProblem,
  InstalledEnvironment,
  PolicyResult,
} from "./compile.ts";
import type { ConfigEvents } from "./config-events.ts";
import { identityOf, type PairIdentity, pairs } from "./identity.ts";
import { quarantine } from "./quarantine.ts";
import { applied, awaiting, degraded, duplicate, failedClosed, retained, unsupported } from "./results.ts";
import { type Settings, settingChanges } from "./settings.ts";

/** The part of egress that a configuration drives. */
export interface EgressPort extends AsyncDisposable {
  /**
   * Makes a generation the one that decides and ends what it no longer allows. The first one takes the sandbox's sockets
   * into service.
   */
  publish(configuration: CompiledConfiguration): Promise<void>;
}

export interface ConfigurationDeps {
  readonly egress: Pick<EgressPort, "publish">;
  readonly compile: ConfigurationCompiler;
  readonly middleware: Pick<MiddlewareManager, "prepare" | "commit" | "recovered">;
  readonly events: ConfigEvents;
  readonly readiness: ReadinessTracker;
  /** Settings of a configuration that was admitted; called once when something changed. */
  readonly onSettings: (settings: Settings) => void;
}

/** One snapshot of one component. */
export type Component = { readonly config: SandboxConfig } | { readonly environment: ProviderEnvironment };

/** Outcome of both components of an acceptance. */
export interface BootstrapOutcome {
  readonly sandboxConfig: ComponentResult;
  readonly providerEnvironment: ComponentResult;
  /** Both are in force. */
  readonly accepted: boolean;
  /** Set where the same configuration may be accepted later without a change of it: resolves when that is worth a try. */
  readonly again?: Promise<void>;
}

/** Outcome of an update. */
export interface UpdateOutcome {
  readonly result: ComponentResult;
  /** Of the other half, which waited and was put in force together with this one. */
  readonly counterpart?: ComponentResult;
}

/** A configuration whose policy can be enforced. */
interface Admissible {
  readonly config: SandboxConfig;
  readonly policy: CompiledPolicy;
  readonly middleware: MiddlewareRegistry;
  /** Why the registry is not whole. */
  readonly incomplete: ConfigurationProblem | undefined;
}

/** A provider environment that was delivered; with nothing in it when it could not be used. */
interface Environment {
  readonly identity: PairIdentity;
  readonly installed: InstalledEnvironment;
  readonly problem: ConfigurationProblem | undefined;
}

/** Keeps the previous valid policy in force instead of closing. */
const RETAIN = "retain_last_valid";

/**
 * What one sandbox has in force: one configuration and one provider environment of the same identity, published together.
 * A half whose counterpart is not there waits (newest wins); a configuration that cannot be enforced closes everything, or
 * leaves the previous one, as it says itself. What is in force already is published again for nobody.
 */
export class ConfigurationController {
  readonly #deps: ConfigurationDeps;
  /** In force, or waiting behind the quarantine. */
  #current: Admissible | undefined;
  #environment: Environment | undefined;
  #stagedConfig: Admissible | undefined;
  #stagedEnvironment: ProviderEnvironment | undefined;
  /** A candidate that was rejected, as it was told. */
  #rejected: { readonly key: string; readonly problem: ConfigurationProblem } | undefined;
  #quarantined = false;
  #settings: Settings = {};
  /** One change at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(deps: ConfigurationDeps) {
    this.#deps = deps;
  }

  /** The configuration in force; during a quarantine, the one before it. */
  get config(): SandboxConfig | undefined {
    return this.#current?.config;
  }

  /** What new processes see of the providers: variable → placeholder or non-secret value. */
  get childEnvironment(): Readonly<Record<string, string>> {
    return this.#environment?.installed.childEnvironment ?? {};
  }

  /**
   * Applies both components of an acceptance. Before the first one is in force, nothing is active when either is unusable;
   * later it is as with live changes. Throws `configuration_mismatch` when they do not belong together.
   */
  bootstrap(config: SandboxConfig, environment: ProviderEnvironment): Promise<BootstrapOutcome> {
    return this.#next(() => this.#bootstrap(config, environment));
  }

  /** One live snapshot of one component. An aborted `signal` keeps it from being put in force. */
  update(component: Component, signal?: AbortSignal): Promise<UpdateOutcome> {
    return this.#next(async () => {
      signal?.throwIfAborted();
      return "config" in component
        ? await this.#updateConfig(component.config, signal)
        : await this.#updateEnvironment(component.environment);
    });
  }

  /** Result of an update that was given up: what was in force still is. */
  unapplied(component: Component, problem: ConfigurationProblem): ComponentResult {
    const revision = "config" in component ? component.config.configRevision : component.environment.providerRevision;
    const active =
      "config" in component
        ? this.#quarantined
          ? ""
          : (this.#current?.config.configRevision ?? "")
        : (this.#environment?.identity.providerRevision ?? "");
    return active === "" || active === revision ? failedClosed(problem) : retained(problem, active);
  }

  async #bootstrap(config: SandboxConfig, environment: ProviderEnvironment): Promise<BootstrapOutcome> {
    if (!pairs(identityOf(config), identityOf(environment)))
      throw new RuntimeError("configuration_mismatch", "configuration and provider environment do not belong together");
    this.#stagedConfig = undefined;
    this.#stagedEnvironment = undefined;
    const first = this.#current === undefined;
    const checked = await this.#compile(config);
    const problem = this.#deps.compile.check(environment);
    const refused = (cause: string): ConfigurationProblem => ({
      code: "configuration_rejected",
      message: `nothing was put in force, since its ${cause} cannot be`,
      next: "",
    });
    if (!checked.ok) {
      return {
        sandboxConfig: await this.#reject(config, checked.problem),
        providerEnvironment: failedClosed(refused("configuration")),
        accepted: false,
      };
    }
    if (problem !== undefined && first) {
      this.#deps.events.environmentRejected({ revision: environment.providerRevision, problem });
      const sandboxConfig = failedClosed(refused("provider environment"));
      return { sandboxConfig, providerEnvironment: failedClosed(problem), accepted: false };
    }
    const candidate = await this.#admissible(config, checked.policy);
    const { incomplete } = candidate;
    if (incomplete !== undefined && first) {
      // Whatever the policy says of failures: a workload does not start before everything that it names has answered.
      const again = this.#deps.middleware.recovered(config);
      const providerEnvironment = failedClosed(refused("configuration"));
      return { sandboxConfig: await this.#reject(config, incomplete), providerEnvironment, accepted: false, again };
    }
    const installed = this.#install(environment);
    await this.#activate(candidate, installed);
    return {
      sandboxConfig: inForce(candidate),
      providerEnvironment: installedAs(installed),
      accepted: installed.problem === undefined,
    };
  }

  async #updateConfig(config: SandboxConfig, signal: AbortSignal | undefined): Promise<UpdateOutcome> {
    if (this.#current === undefined || this.#environment === undefined) return { result: notConfigured() };
    if (this.#isInForce(config)) {
      this.#stagedConfig = undefined;
      this.#rejected = undefined;
      return { result: duplicate(config.configRevision) };
    }
    const checked = await this.#compile(config);
    signal?.throwIfAborted();
    if (!checked.ok) return { result: await this.#reject(config, checked.problem) };
    const candidate = await this.#admissible(config, checked.policy);
    signal?.throwIfAborted();
    const identity = identityOf(config);
    if (pairs(identity, this.#environment.identity)) {
      await this.#activate(candidate, this.#environment);
      return { result: inForce(candidate) };
    }
    const staged = this.#stagedEnvironment;
    if (staged !== undefined && pairs(identity, identityOf(staged))) {
      const installed = this.#install(staged);
      await this.#activate(candidate, installed);
      return { result: inForce(candidate), counterpart: installedAs(installed) };
    }
    this.#stagedConfig = candidate;
    return { result: awaiting() };
  }

  async #updateEnvironment(environment: ProviderEnvironment): Promise<UpdateOutcome> {
    const { compile } = this.#deps;
    if (this.#current === undefined || this.#environment === undefined) return { result: notConfigured() };
    const revision = environment.providerRevision;
    const identity = identityOf(environment);
    const held = this.#environment;
    // Using what it replaces could be using what was withdrawn: a bad one takes every credential away, whatever it pairs with.
    if (compile.check(environment) !== undefined) return { result: await this.#revoke(environment) };
    const staged = this.#stagedConfig;
    if (staged !== undefined && pairs(identityOf(staged.config), identity)) {
      const installed = this.#install(environment);
      await this.#activate(staged, installed);
      return { result: installedAs(installed), counterpart: inForce(staged) };
    }
    if (!pairs(identityOf(this.#current.config), identity)) {
      this.#stagedEnvironment = environment;
      return { result: awaiting() };
    }
    if (held.problem === undefined && held.identity.providerRevision === revision) {
      this.#environment = { ...held, identity };
      this.#stagedEnvironment = undefined;
      return { result: duplicate(revision) };
    }
    const installed = this.#install(environment);
    await this.#activateEnvironment(installed);
    return { result: installedAs(installed) };
  }

  /** Puts a pair in force, in one publication, or in none when what decides stays the same. */
  async #activate(next: Admissible, environment: Environment): Promise<void> {
    const { egress, events, onSettings, middleware } = this.#deps;
    const before = this.#current;
    const beforeEnvironment = this.#environment;
    const samePolicy = before !== undefined && samePolicyAs(before.config, next.config);
    const sameEnvironment = beforeEnvironment?.installed === environment.installed;
    const sameMiddleware = (before?.middleware ?? NO_MIDDLEWARE) === next.middleware;
    if (!samePolicy || !sameEnvironment || !sameMiddleware || this.#quarantined)
      await egress.publish({ policy: next.policy, middleware: next.middleware, ...environment.installed });
    const left = this.#quarantined;
    this.#current = next;
    this.#environment = environment;
    this.#stagedConfig = undefined;
    this.#stagedEnvironment = undefined;
    this.#quarantined = false;
    this.#rejected = undefined;
    await middleware.commit(next.middleware);
    const { config } = next;
    if (before !== undefined && (!samePolicy || !sameEnvironment || !sameMiddleware)) {
      events.detected({
        oldRevision: before.config.configRevision,
        newRevision: config.configRevision,
        policyChanged: !samePolicy,
        providerEnvironmentChanged: !sameEnvironment,
      });
    }
    if (before !== undefined && (!samePolicy || left))
      events.policyLoaded({ hash: config.policyHash, globalVersion: config.globalPolicyVersion });
    if (before !== undefined && !sameEnvironment) this.#tellEnvironment(environment);
    if (!sameMiddleware)
      events.middleware({ problem: next.incomplete, services: [...next.middleware.services.keys()] });
    const changes = settingChanges(this.#settings, config.settings);
    this.#settings = { ...config.settings };
    if (before === undefined || changes.length > 0) onSettings(this.#settings);
    if (before !== undefined) for (const change of changes) events.setting(change);
    this.#observe();
  }

  /** Another environment under the configuration that is in force, or that waits behind the quarantine. */
  async #activateEnvironment(environment: Environment): Promise<void> {
    const before = this.#environment;
    const current = this.#current!;
    this.#environment = environment;
    this.#stagedEnvironment = undefined;
    if (before?.installed !== environment.installed) {
      const { policy, middleware } = current;
      if (!this.#quarantined) await this.#deps.egress.publish({ policy, middleware, ...environment.installed });
      this.#tellEnvironment(environment);
    }
    this.#observe();
  }

  /** Static credentials go at once; what the policy allows without them goes on. */
  async #revoke(environment: ProviderEnvironment): Promise<ComponentResult> {
    const problem = this.#deps.compile.check(environment)!;
    const known = this.#environment;
    if (known?.problem === undefined || known.identity.providerRevision !== environment.providerRevision)
      await this.#activateEnvironment(this.#install(environment));
    return failedClosed(problem);
  }

  /** A policy that cannot be enforced: nothing of its configuration takes effect but how to fail. */
  async #reject(config: SandboxConfig, problem: ConfigurationProblem): Promise<ComponentResult> {
    const { egress, events } = this.#deps;
    const { configRevision: revision, policyVersion: version } = config;
    const last = this.#current;
    const retain = config.validationFailureMode === RETAIN && last !== undefined;
    const key = JSON.stringify([revision, config.policyHash, config.validationFailureMode, problem.code]);
    const repeated = this.#rejected?.key === key;
    this.#stagedConfig = undefined;
    if (!repeated && last !== undefined) {
      if (!retain) {
        await egress.publish(quarantine(version, problem.message, this.childEnvironment));
        this.#quarantined = true;
      } else if (this.#quarantined) {
        const { policy, middleware } = last;
        await egress.publish({ policy, middleware, ...this.#environment!.installed });
        this.#quarantined = false;
      }
    }
    this.#rejected = { key, problem };
    if (!repeated) events.rejected({ revision, version, problem, previousActive: retain });
    this.#observe();
    return retain ? retained(problem, last.config.configRevision) : failedClosed(problem);
  }

  /** The policy that decides stays, with what it remembers, where the rules are the same. */
  #compile(config: SandboxConfig): Promise<PolicyResult> | PolicyResult {
    const current = this.#current;
    if (current !== undefined && samePolicyAs(current.config, config)) return { ok: true, policy: current.policy };
    return this.#deps.compile.policy(config);
  }

  async #admissible(config: SandboxConfig, policy: CompiledPolicy): Promise<Admissible> {
    const { registry: middleware, problem: incomplete } = await this.#deps.middleware.prepare(config);
    return { config, policy, middleware, incomplete };
  }

  #isInForce(config: SandboxConfig): boolean {
    return (
      !this.#quarantined &&
      // What is in force only in part is tried again.
      this.#current?.incomplete === undefined &&
      this.#current?.config.configRevision === config.configRevision &&
      this.#environment !== undefined &&
      pairs(identityOf(config), this.#environment.identity)
    );
  }

  #install(message: ProviderEnvironment): Environment {
    const { compile } = this.#deps;
    const identity = identityOf(message);
    let problem = compile.check(message);
    if (problem === undefined) {
      try {
        return { identity, installed: compile.install(message), problem: undefined };
      } catch {
        // What it says could name a value.
        const next = "Update the provider; until then its credentials are unavailable";
        problem = {
          code: "provider_environment_unavailable",
          message: "the provider environment cannot be used",
          next,
        };
      }
    }
    return { identity, installed: compile.revoke(), problem };
  }

  #tellEnvironment({ identity, installed, problem }: Environment): void {
    const { events } = this.#deps;
    const revision = identity.providerRevision;
    if (problem !== undefined) events.environmentRejected({ revision, problem });
    else events.environmentLoaded({ revision, variables: Object.keys(installed.childEnvironment).length });
  }

  #observe(): void {
    const environment = this.#environment;
    const config = this.#current?.config;
    this.#deps.readiness.set({
      attachmentEpoch: environment?.identity.attachmentEpoch ?? "",
      providerRevision: environment?.identity.providerRevision ?? "",
      configRevision: config?.configRevision ?? "",
      policyHash: config?.policyHash ?? "",
      credentialsInstalled: environment !== undefined && environment.problem === undefined && !this.#quarantined,
      policyActive: config !== undefined && !this.#quarantined,
      launchEnvironmentInstalled: environment !== undefined && environment.problem === undefined,
      problem: this.#rejected?.problem ?? environment?.problem,
    });
  }

  #next<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#turn.then(work);
    this.#turn = done.catch(() => {});
    return done;
  }
}

/** A newer version, or another revision, of the same rules needs no reload. */
function samePolicyAs(before: SandboxConfig, next: SandboxConfig): boolean {
  return before.policyHash !== "" && before.policyHash === next.policyHash;
}

function inForce({ config, incomplete }: Admissible): ComponentResult {
  return incomplete === undefined ? applied(config.configRevision) : degraded(incomplete, config.configRevision);
}

function installedAs({ identity, problem }: Environment): ComponentResult {
  return problem === undefined ? applied(identity.providerRevision) : failedClosed(problem);
}

function notConfigured(): ComponentResult {
  return unsupported({ code: "apply_unavailable", message: "no configuration was accepted yet", next: "" });
}

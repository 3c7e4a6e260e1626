import { create } from "@bufbuild/protobuf";
import {
  type AttachSandbox,
  type ComponentResult,
  ComponentResultSchema,
  ConfigApplyOutcome,
  FailureSchema,
  type MainProcess as MainProcessSpec,
  type ProviderEnvironment,
  type RelayDownlink,
  type SandboxConfig,
  type WorkloadLayout,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, LogField, RuntimeError } from "@openshell/base";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import type { Boundary, IsolationLayer, Restrictions } from "@openshell/boundary";
import type { FilesystemRules } from "@openshell/boundary/local/compile/landlock.ts";
import type { CompiledConfiguration, ConfigurationCompiler } from "../config/compile.ts";
import { processEnvironment } from "../config/environment.ts";
import { filesystemRules } from "../config/filesystem.ts";
import { runExec } from "../exec/exec.ts";
import { MainProcess } from "../exec/main-process.ts";
import type { RelayChannel } from "../exec/relay.ts";
import { describeStartFailure } from "../exec/start-failure.ts";
import { breachFinding, type IsolationFinding, minimumFinding, reducedFinding } from "../isolation/findings.ts";
import { belowMinimum, breached, missingLayers, withUsableLandlock } from "../isolation/minimum.ts";
import { selfTest, type TestedLayer } from "../isolation/self-test.ts";
import type { SandboxLog } from "../logs/sandbox-log.ts";

/** The part of egress that a workload drives. */
export interface EgressPort extends AsyncDisposable {
  /**
   * Makes a generation the one that decides and ends what it no longer allows. The first one takes the sandbox's sockets
   * into service.
   */
  publish(configuration: CompiledConfiguration): Promise<void>;
}

export interface WorkloadDeps {
  readonly assignment: AttachSandbox;
  readonly layout: WorkloadLayout;
  readonly boundary: Boundary;
  readonly egress: EgressPort;
  readonly clock: Clock;
  readonly log: SandboxLog;
  readonly compile: ConfigurationCompiler;
  readonly restrictions: (rules: FilesystemRules, processLimit: number) => Promise<Restrictions>;
  /** A security event about the isolation of this sandbox. */
  readonly finding?: (finding: IsolationFinding) => void;
  /** What else ends with the workload: event files. */
  readonly dispose?: () => Promise<void>;
}

/** Outcome of one delivered component together with the one it pairs with. */
export interface BootstrapOutcome {
  readonly sandboxConfig: ComponentResult;
  readonly providerEnvironment: ComponentResult;
  readonly accepted: boolean;
}

/** Idles until the sandbox stops; what runs when no command was given and no terminal is wanted. */
const IDLE_COMMAND = ["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait; done"] as const;

/**
 * What one supervisor does inside its sandbox: one configuration at a time, one main process, execs and attachments.
 * Survives sessions: a reconnect applies the new bootstrap to the same workload.
 */
export class Workload implements AsyncDisposable {
  readonly #deps: WorkloadDeps;
  #current:
    | {
        readonly config: SandboxConfig;
        readonly environment: ProviderEnvironment;
        readonly compiled: CompiledConfiguration;
      }
    | undefined;
  #main: MainProcess | undefined;
  #layers: readonly TestedLayer[];
  #mainStarted = Promise.withResolvers<MainProcess>();
  #startedAtMs = 0;
  #startBegun = false;

  constructor(deps: WorkloadDeps) {
    this.#deps = deps;
    const claimed = [...deps.assignment.driverIsolation, ...deps.boundary.isolation];
    this.#layers = claimed.map(({ name, enforced, detail }) => ({ name, enforced, detail, tested: false }));
    this.#mainStarted.promise.catch(() => {});
    if (deps.boundary.main !== undefined) this.#setMain(new MainProcess(deps.boundary.main, deps.clock, false));
  }

  get main(): MainProcess | undefined {
    return this.#main;
  }

  /** The isolation in force; before the start, what the driver and init set up. */
  get layers(): readonly TestedLayer[] {
    return this.#layers;
  }

  get startedAtMs(): number {
    return this.#startedAtMs;
  }

  /** Applies both components of an acceptance. Nothing is active when either is unusable. */
  async bootstrap(config: SandboxConfig, environment: ProviderEnvironment): Promise<BootstrapOutcome> {
    const compiled = await this.#deps.compile(config, environment);
    if (!compiled.ok) {
      const failed = failedResult(ConfigApplyOutcome.FAILED_CLOSED, compiled.code, compiled.message, compiled.next);
      return { sandboxConfig: failed, providerEnvironment: failed, accepted: false };
    }
    await this.#activate(config, environment, compiled.configuration);
    return {
      sandboxConfig: applied(config.configRevision),
      providerEnvironment: applied(environment.providerRevision),
      accepted: true,
    };
  }

  /** Starts the sandbox's main process under the applied configuration; once a generation. */
  async startFirst(spec: MainProcessSpec): Promise<void> {
    const { boundary, layout, clock } = this.#deps;
    const current = this.#current;
    if (current === undefined)
      throw new RuntimeError("not_configured", "a workload starts only after a configuration was accepted");
    const policy = current.config.policy;
    if (policy === undefined)
      throw new RuntimeError("policy_missing", "the accepted configuration carries no policy", {
        next: "Set a policy for the sandbox",
      });
    if (this.#startBegun) throw startInterrupted();
    this.#startBegun = true;
    const restrictions = await this.#deps.restrictions(filesystemRules(policy, layout), layout.processLimit);
    const confirmed = await boundary.confirm(restrictions);
    await this.#proveIsolation(restrictions, confirmed, policy.landlock?.compatibility === "hard_requirement");
    const command = spec.command.length > 0 ? spec.command : spec.tty ? [this.shell, "-l"] : IDLE_COMMAND;
    const process = await boundary
      .startMain({
        argv: command,
        env: this.environment(spec.environment, spec.tty),
        cwd: spec.workingDirectory === "" ? layout.workingDirectory : spec.workingDirectory,
        stdio: spec.tty ? { kind: "pty", rows: spec.rows || 24, columns: spec.columns || 80 } : { kind: "pipes" },
      })
      .catch((error: unknown) => {
        throw describeStartFailure(error, command[0] ?? "");
      });
    this.#startedAtMs = clock.now();
    this.#setMain(new MainProcess(process, clock, spec.awaitAttachment));
  }

  /** One live snapshot of one component. The other one stays as it is; a mismatching pair waits for its counterpart. */
  async update(
    component: { readonly config: SandboxConfig } | { readonly environment: ProviderEnvironment },
  ): Promise<ComponentResult> {
    const current = this.#current;
    if (current === undefined)
      return failedResult(ConfigApplyOutcome.UNSUPPORTED, "not_configured", "no configuration was accepted yet", "");
    const config = "config" in component ? component.config : current.config;
    const environment = "environment" in component ? component.environment : current.environment;
    const revision = "config" in component ? config.configRevision : environment.providerRevision;
    const active = "config" in component ? current.config.configRevision : current.environment.providerRevision;
    if (revision === active)
      return create(ComponentResultSchema, {
        outcome: ConfigApplyOutcome.IGNORED_DUPLICATE,
        appliedRevision: revision,
      });
    const compiled = await this.#deps.compile(config, environment);
    if (!compiled.ok) {
      this.#deps.log.error(`configuration ${revision} was not applied: ${compiled.message}`, {
        [LogField.code]: compiled.code,
      });
      const outcome = ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD;
      const result = failedResult(outcome, compiled.code, compiled.message, compiled.next);
      result.appliedRevision = active;
      return result;
    }
    await this.#activate(config, environment, compiled.configuration);
    return applied(revision);
  }

  environment(requested: Readonly<Record<string, string>>, tty: boolean): Record<string, string> {
    return processEnvironment({
      base: this.#deps.layout.environment,
      providers: this.#current?.compiled.childEnvironment ?? {},
      requested,
      tty,
    });
  }

  get shell(): string {
    return this.#deps.layout.environment["SHELL"] ?? "/bin/sh";
  }

  /** Serves one relay to its end. */
  async serve(input: AsyncIterator<RelayDownlink>, channel: RelayChannel): Promise<void> {
    const first = await input.next();
    if (first.done) return channel.end();
    const { message } = first.value;
    if (message.case === "exec") {
      await this.#mainStarted.promise;
      const { boundary, clock, layout } = this.#deps;
      const context = {
        boundary,
        clock,
        environment: (extra: Readonly<Record<string, string>>, tty: boolean) => this.environment(extra, tty),
        workingDirectory: layout.workingDirectory,
        shell: this.shell,
      };
      return runExec(context, message.value, input, channel);
    }
    if (message.case === "attach") {
      const main = await this.#mainStarted.promise;
      return main.attach(message.value, input, channel);
    }
    throw new RuntimeError("relay_start_missing", "the relay did not begin with what to run");
  }

  /** Each part is let go of even when another one fails to. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#mainStarted.reject(new RuntimeError("sandbox_ended", "the sandbox ended before its main process started"));
    await using stack = new AsyncDisposableStack();
    stack.defer(async () => this.#deps.dispose?.());
    stack.use(this.#deps.boundary);
    stack.use(this.#deps.egress);
  }

  /**
   * Tries every layer from inside and holds the result against what the sandbox must have. Throws `isolation_breached` or
   * `isolation_below_minimum`; whatever is not in force is told as a finding.
   */
  async #proveIsolation(
    restrictions: Restrictions,
    confirmed: readonly IsolationLayer[],
    landlockRequired: boolean,
  ): Promise<void> {
    const { assignment, boundary, layout, finding } = this.#deps;
    const { local } = assignment;
    const { layers, breaches } = await selfTest({
      boundary,
      facts: {
        layers: withUsableLandlock([...this.#layers, ...confirmed]),
        restrictions,
        uid: layout.uid,
        gid: layout.gid,
        netnsCookie: local?.netnsCookie ?? 0n,
        hostPaths: [assignment.logDirectory].filter((path) => path !== ""),
        hostSocket: local?.socketPath ?? "",
        gatewayAddresses: assignment.network?.alwaysDenied ?? [],
        capturePorts: boundary.capture.tcp.map(({ port }) => port),
      },
    });
    this.#layers = layers;
    if (breaches.length > 0) {
      const error = breached(breaches);
      finding?.(breachFinding(error));
      throw error;
    }
    const minimum = [...assignment.minimumIsolation, ...(landlockRequired ? ["landlock"] : [])];
    const missing = missingLayers(minimum, layers);
    if (missing.length > 0) {
      const error = belowMinimum(missing);
      finding?.(minimumFinding(error));
      throw error;
    }
    const reduced = layers.filter(({ enforced }) => !enforced);
    if (reduced.length > 0) finding?.(reducedFinding(reduced));
  }

  async #activate(
    config: SandboxConfig,
    environment: ProviderEnvironment,
    compiled: CompiledConfiguration,
  ): Promise<void> {
    await this.#deps.egress.publish(compiled);
    this.#current = { config, environment, compiled };
  }

  #setMain(main: MainProcess): void {
    this.#main = main;
    this.#mainStarted.resolve(main);
  }
}

/** Restrictions hold once a generation: a start that was cut off after them cannot be taken up under another configuration. */
export function startInterrupted(): RuntimeError {
  return new RuntimeError("start_interrupted", "the start of the main process was cut off", {
    next: "Start the sandbox again",
  });
}

function applied(revision: string): ComponentResult {
  return create(ComponentResultSchema, { outcome: ConfigApplyOutcome.APPLIED, appliedRevision: revision });
}

function failedResult(
  outcome: ConfigApplyOutcome,
  code: RuntimeErrorCode,
  message: string,
  next: string,
): ComponentResult {
  return create(ComponentResultSchema, {
    outcome,
    failure: create(FailureSchema, { code, message: message.slice(0, 1_024), next }),
  });
}

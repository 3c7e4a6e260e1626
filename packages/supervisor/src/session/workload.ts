import type {
  AttachSandbox,
  MainProcess as MainProcessSpec,
  RelayDownlink,
  WorkloadLayout,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import type { Boundary, IsolationLayer, Restrictions } from "@openshell/boundary";
import type { FilesystemRules } from "@openshell/boundary/local/compile/landlock.ts";
import type { ConfigurationController } from "../config/controller.ts";
import { processEnvironment } from "../config/environment.ts";
import { filesystemRules } from "../config/filesystem.ts";
import { runExec } from "../exec/exec.ts";
import { MainProcess } from "../exec/main-process.ts";
import type { RelayChannel } from "../exec/relay.ts";
import { describeStartFailure } from "../exec/start-failure.ts";
import { breachFinding, type IsolationFinding, minimumFinding, reducedFinding } from "../isolation/findings.ts";
import { belowMinimum, breached, missingLayers, withUsableLandlock } from "../isolation/minimum.ts";
import { selfTest, type TestedLayer } from "../isolation/self-test.ts";
import type { ReadinessTracker } from "./readiness.ts";

export interface WorkloadDeps {
  readonly assignment: AttachSandbox;
  readonly layout: WorkloadLayout;
  readonly boundary: Boundary;
  readonly egress: AsyncDisposable;
  readonly configuration: ConfigurationController;
  readonly readiness: ReadinessTracker;
  readonly clock: Clock;
  readonly restrictions: (rules: FilesystemRules, processLimit: number) => Promise<Restrictions>;
  /** A security event about the isolation of this sandbox. */
  readonly finding?: (finding: IsolationFinding) => void;
  /** What else ends with the workload: event files. */
  readonly dispose?: () => Promise<void>;
}

/** Idles until the sandbox stops; what runs when no command was given and no terminal is wanted. */
const IDLE_COMMAND = ["/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait; done"] as const;

/**
 * What one supervisor does inside its sandbox: one main process, execs and attachments. Survives sessions.
 */
export class Workload implements AsyncDisposable {
  readonly #deps: WorkloadDeps;
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

  /** Starts the sandbox's main process under the applied configuration; once a generation. */
  async startFirst(spec: MainProcessSpec): Promise<void> {
    const { boundary, layout, clock } = this.#deps;
    const { config } = this.#deps.configuration;
    if (config === undefined)
      throw new RuntimeError("not_configured", "a workload starts only after a configuration was accepted");
    const { policy } = config;
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

  environment(requested: Readonly<Record<string, string>>, tty: boolean): Record<string, string> {
    return processEnvironment({
      base: this.#deps.layout.environment,
      providers: this.#deps.configuration.childEnvironment,
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

  #setMain(main: MainProcess): void {
    this.#main = main;
    this.#mainStarted.resolve(main);
    const { readiness } = this.#deps;
    readiness.set({ processRunning: true });
    const ended = (): void => readiness.set({ processRunning: false });
    main.exit.then(ended, ended);
  }
}

/** Restrictions hold once a generation: a start that was cut off after them cannot be taken up under another configuration. */
export function startInterrupted(): RuntimeError {
  return new RuntimeError("start_interrupted", "the start of the main process was cut off", {
    next: "Start the sandbox again",
  });
}

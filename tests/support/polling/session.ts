import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import {
  ConfigurationAdmissionState,
  type GetSandboxConfigResponse,
  type OpenShell,
  PolicyStatus,
  ProviderReadinessObservationSchema,
  ProviderReadinessReason,
} from "@openshell/api";
import {
  type ComponentResult,
  ConfigApplyOutcome as Outcome,
  type ReadinessObservation,
  type SessionAccepted,
  type SupervisorDownlink,
  SupervisorDownlinkSchema,
  type SupervisorGateway,
  type SupervisorHello,
  type SupervisorUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { revisionNumber } from "@openshell/gateway/delivery/snapshot.ts";
import { configUpdate, environmentUpdate, type Known } from "./messages.ts";

/** Messages that wait in one direction. */
const QUEUE = 1_000;
/** A supervisor's answer to what it was given. Milliseconds. */
const ANSWER_MS = 10_000;
const TOKEN = "openshell-sandbox-token";

export interface Clients {
  readonly supervisor: Client<typeof SupervisorGateway>;
  readonly api: Client<typeof OpenShell>;
}

export interface Attachment {
  readonly sandboxName: string;
  readonly workspace: string;
  readonly token: string;
}

export interface PollingSessionOptions {
  readonly revision: number;
  readonly intervalMs: number;
  readonly clients: Clients;
  readonly attachments: ReadonlyMap<string, Attachment>;
  readonly looks: { of(sandboxId: string): { unchanged: number; changed: number } };
  readonly problems: string[];
}

type Call = { readonly headers: Headers; readonly signal: AbortSignal };
type Update = NonNullable<MessageInitShape<typeof SupervisorDownlinkSchema>["message"]> & { case: "update" };

/**
 * One session of a supervisor that polls. Its hello says the older revision. At each look the supervisor is given both
 * components as they were read, whether they differ from what it has or not: that it notices nothing is its own doing.
 * What it answers and shows is reported with RPCs; nothing of it goes over the session.
 */
export class PollingSession {
  readonly #options: PollingSessionOptions;
  readonly #down = new BoundedQueue<SupervisorDownlink>(QUEUE);
  readonly #up = new BoundedQueue<SupervisorUplink>(QUEUE);
  readonly #answers = new Map<string, (result: ComponentResult | undefined) => void>();
  readonly #ended = new AbortController();
  #hello: SupervisorHello | undefined;
  #accepted: SessionAccepted | undefined;
  #known: Known | undefined;
  #evidence: ReadinessObservation | undefined;
  #sequence = 0n;
  #polling: Promise<void> | undefined;

  constructor(options: PollingSessionOptions) {
    this.#options = options;
  }

  async *run(uplink: AsyncIterable<SupervisorUplink>, call: Call): AsyncGenerator<SupervisorDownlink> {
    const stream = this.#options.clients.supervisor.connectSupervisor(this.#up, call);
    void this.#readUplink(uplink);
    void this.#readDownlink(stream);
    try {
      yield* this.#down;
    } finally {
      this.#ended.abort();
      this.#up.close();
      await this.#polling;
    }
  }

  async #readUplink(uplink: AsyncIterable<SupervisorUplink>): Promise<void> {
    try {
      for await (const message of uplink) if (!this.#keep(message)) await this.#up.push(message);
      this.#up.close();
    } catch (error) {
      this.#up.close(error);
    }
  }

  async #readDownlink(downlink: AsyncIterable<SupervisorDownlink>): Promise<void> {
    try {
      for await (const message of downlink) {
        const { message: content } = message;
        if (content.case === "update") this.#options.problems.push("an update was sent to a supervisor that polls");
        if (content.case === "accepted") {
          this.#accepted = content.value;
          const { sandboxConfig, providerEnvironment } = content.value;
          const providers = new Map(
            providerEnvironment!.values.map(({ credentialIdentity, provider }) => [credentialIdentity, provider]),
          );
          this.#known = { config: sandboxConfig!, environment: providerEnvironment!, providers };
        }
        await this.#down.push(message);
      }
      this.#down.close();
    } catch (error) {
      this.#down.close(error);
    }
  }

  /** Whether a message of the supervisor stays here. */
  #keep({ message }: SupervisorUplink): boolean {
    switch (message.case) {
      case "hello":
        message.value.protocolRevision = this.#options.revision;
        this.#hello = message.value;
        return false;
      case "ready":
        this.#polling ??= this.#poll();
        return false;
      case "readiness":
        this.#evidence = message.value;
        return true;
      case "updateResult": {
        const { updateId, result } = message.value;
        this.#answers.get(updateId)?.(result);
        return true;
      }
      default:
        return false;
    }
  }

  async #poll(): Promise<void> {
    const { signal } = this.#ended;
    let last = "";
    while (!signal.aborted) {
      try {
        await this.#look();
        last = "";
      } catch (error) {
        // The sandbox ends or is not ready yet, or what is served changed meanwhile: then the next look is another one.
        const what = String(error);
        if (!signal.aborted && what === last && !/failed_precondition/.test(what)) this.#options.problems.push(what);
        last = what;
      }
      await systemClock.sleep(this.#options.intervalMs, { signal, unref: true }).catch(() => {});
    }
  }

  async #look(): Promise<void> {
    const { api } = this.#options.clients;
    const { sandboxId } = this.#hello!;
    const { sandboxName, workspace, token } = this.#options.attachments.get(sandboxId)!;
    const call = { headers: { [TOKEN]: token }, signal: this.#ended.signal };
    const workspaceScope = { selection: { case: "workspace" as const, value: workspace } };
    const polled = await api.getSandboxConfig({ workspaceScope, name: sandboxName }, call);
    const supports = { supportsStaticCredentialBindings: true, supportsStablePlaceholderEnvironmentKeys: true };
    const environment = await api.getSandboxProviderEnvironment({ sandboxId, ...supports }, call);
    const known = this.#known!;
    const half = await this.#give({ case: "update", value: environmentUpdate(environment, known) });
    const whole = await this.#give({ case: "update", value: configUpdate(polled, known) });
    const changed = [half, whole].some((outcome) => outcome !== Outcome.IGNORED_DUPLICATE);
    this.#options.looks.of(sandboxId)[changed ? "changed" : "unchanged"] += 1;
    if (changed && whole !== Outcome.AWAITING_COMPONENT) await this.#tell(polled, whole, call);
    await this.#show(call);
  }

  /** The supervisor's answer to one component. */
  async #give(update: Update): Promise<Outcome> {
    const updateId = crypto.randomUUID();
    this.#sequence += 1n;
    const answered = Promise.withResolvers<ComponentResult | undefined>();
    this.#answers.set(updateId, answered.resolve);
    const timer = setTimeout(() => answered.reject(new Error("the supervisor does not answer")), ANSWER_MS);
    try {
      const value = { ...update.value, updateId, sequence: this.#sequence };
      this.#down.offer(create(SupervisorDownlinkSchema, { message: { case: "update", value } }));
      return (await answered.promise)?.outcome ?? Outcome.UNSPECIFIED;
    } finally {
      clearTimeout(timer);
      this.#answers.delete(updateId);
    }
  }

  /** What became of a change. */
  async #tell(polled: GetSandboxConfigResponse, outcome: Outcome, call: { readonly headers: object }): Promise<void> {
    const { api } = this.#options.clients;
    const { sandboxId, instanceId } = this.#hello!;
    const loaded = [Outcome.APPLIED, Outcome.IGNORED_DUPLICATE, Outcome.DEGRADED].includes(outcome);
    const error = loaded ? "" : "it cannot be enforced";
    const { version, policyHash, configRevision, providerEnvRevision } = polled;
    if (polled.globalPolicyVersion === 0 && version > 0) {
      const status = loaded ? PolicyStatus.LOADED : PolicyStatus.FAILED;
      await api.reportPolicyStatus({ sandboxId, version, status, loadError: error }, call as never);
    }
    const state = loaded ? ConfigurationAdmissionState.ACCEPTED : ConfigurationAdmissionState.REJECTED;
    const facts = { policyVersion: version, policyHash, configRevision, providerEnvRevision };
    const admission = { instanceId, state, error, ...facts };
    await api.reportSandboxConfiguration({ sandboxId, admission }, call as never);
  }

  /** What the supervisor has in force, under this session's own numbers. */
  async #show(call: { readonly headers: object }): Promise<void> {
    const evidence = this.#evidence;
    if (evidence === undefined) return;
    const { attachmentEpoch, policyHash, processInstanceId } = evidence;
    const { credentialsInstalled, policyActive, launchEnvironmentInstalled } = evidence;
    const whole = credentialsInstalled && policyActive && launchEnvironmentInstalled;
    this.#sequence += 1n;
    const observation = create(ProviderReadinessObservationSchema, {
      sessionId: this.#accepted!.sessionId,
      sequence: this.#sequence,
      attachmentEpoch,
      policyHash,
      processInstanceId,
      credentialsInstalled,
      policyActive,
      launchEnvironmentInstalled,
      providerEnvRevision: revisionNumber(evidence.providerRevision),
      configRevision: revisionNumber(evidence.configRevision),
      reason: whole ? ProviderReadinessReason.UNSPECIFIED : ProviderReadinessReason.POLICY_ACTIVATION_FAILED,
    });
    await this.#options.clients.api.reportProviderReadiness(
      { sandboxId: this.#hello!.sandboxId, observation },
      call as never,
    );
  }
}

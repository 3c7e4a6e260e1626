import { create } from "@bufbuild/protobuf";
import {
  ConfigurationAdmissionState,
  type GetSandboxConfigResponse,
  type GetSandboxProviderEnvironmentResponse,
  PolicyStatus,
  type ProviderReadinessObservation,
  ProviderReadinessObservationSchema,
  ProviderReadinessReason as Reason,
} from "@openshell/api";
import type { FakeHost, FakeSupervisor } from "../../api/testing/fake-host.ts";
import { revisionNumber } from "../../delivery/snapshot.ts";
import { SANDBOX_TOKEN_HEADER } from "../../sessions/service.ts";

/** What a poll found. */
export type Found = "nothing" | "configuration" | "environment" | "both" | "environment unavailable";

/** A supervisor of an older release, over the session of a fake host: it asks for changes, and reports what it has. */
export class PollingPeer {
  readonly #host: FakeHost;
  readonly #supervisor: FakeSupervisor;
  /** In force, from the bootstrap on. */
  #config: Pick<GetSandboxConfigResponse, "configRevision" | "version" | "policyHash">;
  #environment: Pick<GetSandboxProviderEnvironmentResponse, "providerEnvRevision" | "providerAttachmentEpoch">;
  #sequence = 0n;
  /** Reports that were sent. */
  readonly reports: string[] = [];
  environment: GetSandboxProviderEnvironmentResponse | undefined;

  constructor(host: FakeHost, supervisor: FakeSupervisor) {
    this.#host = host;
    this.#supervisor = supervisor;
    const { sandboxConfig: config, providerEnvironment: environment } = supervisor.accepted!;
    this.#config = {
      configRevision: revisionNumber(config!.configRevision),
      version: config!.policyVersion,
      policyHash: config!.policyHash,
    };
    this.#environment = {
      providerEnvRevision: revisionNumber(environment!.providerRevision),
      providerAttachmentEpoch: environment!.attachmentEpoch,
    };
  }

  get sandboxId(): string {
    return this.#supervisor.attach.sandboxId;
  }

  get options() {
    return { headers: { [SANDBOX_TOKEN_HEADER]: this.#supervisor.attach.token!.token } };
  }

  get client() {
    return this.#host.publicClient;
  }

  config(): Promise<GetSandboxConfigResponse> {
    const { workspace, sandboxName: name } = this.#supervisor.attach;
    const workspaceScope = { selection: { case: "workspace" as const, value: workspace } };
    return this.client.getSandboxConfig({ workspaceScope, name }, this.options);
  }

  fetchEnvironment(supports = true): Promise<GetSandboxProviderEnvironmentResponse> {
    const { sandboxId } = this;
    const request = {
      sandboxId,
      supportsStaticCredentialBindings: supports,
      supportsStablePlaceholderEnvironmentKeys: supports,
    };
    return this.client.getSandboxProviderEnvironment(request, this.options);
  }

  /** One look: what differs from what is in force is taken up and reported. */
  async poll(): Promise<Found> {
    const config = await this.config();
    const moved =
      config.providerEnvRevision !== this.#environment.providerEnvRevision ||
      config.providerAttachmentEpoch !== this.#environment.providerAttachmentEpoch;
    const changed = config.configRevision !== this.#config.configRevision;
    if (moved) {
      try {
        this.environment = await this.fetchEnvironment();
        this.#environment = this.environment;
      } catch {
        // The former credentials may have been withdrawn: none is used any more.
        await this.observe({ credentialsInstalled: false, reason: Reason.CREDENTIAL_INSTALL_FAILED });
        return "environment unavailable";
      }
    }
    if (changed && config.version !== this.#config.version) await this.policy(config.version, PolicyStatus.LOADED);
    this.#config = config;
    if (!changed && !moved) return "nothing";
    await this.judge(ConfigurationAdmissionState.ACCEPTED, config);
    await this.observe();
    return changed ? (moved ? "both" : "configuration") : "environment";
  }

  async policy(version: number, status: PolicyStatus, loadError = ""): Promise<void> {
    this.reports.push(`policy ${version} ${PolicyStatus[status]}`);
    await this.client.reportPolicyStatus({ sandboxId: this.sandboxId, version, status, loadError }, this.options);
  }

  async judge(
    state: ConfigurationAdmissionState,
    config: GetSandboxConfigResponse,
    more: object = {},
    expectedInstanceId = "",
  ): Promise<void> {
    this.reports.push(`configuration ${ConfigurationAdmissionState[state]}`);
    const admission = {
      instanceId: this.#supervisor.instanceId,
      state,
      policyVersion: config.version,
      policyHash: config.policyHash,
      configRevision: config.configRevision,
      providerEnvRevision: config.providerEnvRevision,
      ...more,
    };
    const request = { sandboxId: this.sandboxId, admission, expectedInstanceId };
    await this.client.reportSandboxConfiguration(request, this.options);
  }

  /** A complete observation with these changes, under the next number. */
  observation(changes: object = {}): ProviderReadinessObservation {
    return create(ProviderReadinessObservationSchema, {
      sessionId: this.#supervisor.accepted!.sessionId,
      sequence: this.#sequence + 1n,
      attachmentEpoch: this.#environment.providerAttachmentEpoch,
      providerEnvRevision: this.#environment.providerEnvRevision,
      configRevision: this.#config.configRevision,
      policyHash: this.#config.policyHash,
      credentialsInstalled: true,
      policyActive: true,
      launchEnvironmentInstalled: true,
      processInstanceId: this.#supervisor.instanceId,
      ...changes,
    });
  }

  async observe(changes: object = {}) {
    const observation = this.observation(changes);
    const answer = await this.report(observation);
    this.#sequence = observation.sequence;
    return answer;
  }

  report(observation: ProviderReadinessObservation | undefined) {
    this.reports.push("readiness");
    const request = { sandboxId: this.sandboxId, ...(observation === undefined ? {} : { observation }) };
    return this.client.reportProviderReadiness(request, this.options);
  }
}

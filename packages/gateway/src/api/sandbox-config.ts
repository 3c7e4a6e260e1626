import { create } from "@bufbuild/protobuf";
import {
  ConfigurationAdmissionState,
  type GetSandboxConfigResponse,
  GetSandboxConfigResponseSchema,
  PolicySource,
} from "@openshell/api";
import { revisionNumber, type Snapshot } from "../delivery/snapshot.ts";
import { shownService } from "../policies/middleware.ts";
import { settingMessages } from "../settings/effective.ts";
import type { SandboxRecord } from "../store/types.ts";

/** The configuration of a sandbox as the public API shows it, to users and to supervisors that poll. */
export function sandboxConfigMessage(record: SandboxRecord, snapshot: Snapshot): GetSandboxConfigResponse {
  const { config, providerRevision, settings } = snapshot;
  const admission = record.status.configurationAdmission;
  const refused = admission?.state === ConfigurationAdmissionState.REJECTED;
  return create(GetSandboxConfigResponseSchema, {
    ...(config.policy === undefined ? {} : { policy: config.policy }),
    version: config.policyVersion,
    policyHash: config.policyHash,
    configRevision: revisionNumber(config.configRevision),
    policySource: config.globalPolicyVersion > 0 ? PolicySource.GLOBAL : PolicySource.SANDBOX,
    globalPolicyVersion: config.globalPolicyVersion,
    settings: settingMessages(settings),
    settingsRevision: settings.revision,
    providerEnvRevision: revisionNumber(providerRevision),
    supervisorMiddlewareServices: config.middleware.map(shownService),
    workspace: record.workspace,
    policyValidationFailureMode: config.validationFailureMode,
    configurationAdmitted: !refused,
    configurationError: refused ? (admission?.error ?? "") : "",
    configurationInstanceId: admission?.instanceId ?? "",
    providerAttachmentEpoch: record.spec.providerAttachmentEpoch,
  });
}

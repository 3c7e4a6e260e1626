import type { DescField, DescMessage } from "@bufbuild/protobuf";
import { compatibility, type RpcName } from "./compatibility.ts";
import { OpenShell } from "./generated/openshell_pb.js";

/**
 * What the RPCs that are built do not do yet, field by field: one source of the compatibility page and of the tests that hold the
 * gateway to it. Keys are `Message.field` in proto names.
 */

/** A field of requests that does not have its full effect. */
export interface RequestGap {
  /** How a request that sets it is answered; `ignored` only where the API lets the gateway decide, or the field is its own. */
  readonly answer: "INVALID_ARGUMENT" | "UNIMPLEMENTED" | "ignored";
  /** What holds instead. */
  readonly note: string;
}

const refused = (note: string): RequestGap => ({ answer: "INVALID_ARGUMENT", note });
const unbuilt = (note: string): RequestGap => ({ answer: "UNIMPLEMENTED", note });
const ignored = (note: string): RequestGap => ({ answer: "ignored", note });

const OTHER_DRIVERS = refused("of drivers that run containers");
const OWN = ignored("given by the gateway");

/** Fields of requests, in the order of their messages. */
export const requestGaps: Readonly<Record<string, RequestGap>> = {
  "CreateSandboxRequest.workload_template": unbuilt(
    "templates are not built yet; describe the workload in spec.template",
  ),
  "CreateSandboxRequest.service_exposures": unbuilt("services are not built yet"),
  "SandboxSpec.log_level": refused("supervisors log at one level"),
  "SandboxSpec.resource_requirements": refused("GPUs are not offered by the local driver"),
  "SandboxSpec.provider_attachment_epoch": refused("given by the gateway"),
  "SandboxTemplate.image": refused("no images are pulled; driver_config.local.root names a folder or archive of one"),
  "SandboxTemplate.runtime_class_name": OTHER_DRIVERS,
  "SandboxTemplate.agent_socket": OTHER_DRIVERS,
  "SandboxTemplate.labels": refused("the local driver makes no object that could carry them; label the sandbox"),
  "SandboxTemplate.annotations": refused(
    "the local driver makes no object that could carry them; annotate the sandbox",
  ),
  "SandboxTemplate.user_namespaces": refused("decided by the local driver"),
  "SandboxTemplate.resources": refused(
    "limits.cpu and limits.memory work and requests are taken as hints; all else is refused",
  ),
  "SandboxTemplate.driver_config": refused(
    "local.root, local.rootfs_tar_staging_token and local.volumes work; other keys of local are refused, blocks of other drivers not used",
  ),
  "Provider.credential_handles": refused("credentials are kept in the gateway's own store"),
  "Provider.profile_workspace": refused("profiles are not built yet; empty or the provider's own workspace"),
  "ObjectMeta.id": ignored("given by the gateway; in an update it tells which provider is meant"),
  "ObjectMeta.resource_version": ignored("given by the gateway; in an update it tells which version is meant"),
  "ObjectMeta.created_time": OWN,
  "ObjectMeta.deletion_time": OWN,
  "SettingValue.int_value": refused("no setting is a number"),
  "SettingValue.bytes_value": refused("no setting is bytes"),
};

/** Fields of answers that are always empty, and why. */
export const emptyAnswers: Readonly<Record<string, string>> = {
  "Sandbox.host_key_fingerprint": "SSH is not built yet",
  "Sandbox.created_from_workload_template": "templates are not built yet",
  "SandboxResponse.service_urls": "services are not built yet",
  "SandboxStatus.agent_pod": "of the Kubernetes driver",
  "SandboxStatus.agent_fd": "of older runtimes",
  "SandboxStatus.sandbox_fd": "of older runtimes",
  "SandboxStatus.endpoint_statuses": "the status of endpoints is not built yet",
  "SandboxProvisioning.configuration_change_time": "the change is identified, not dated",
  "SandboxProvisioning.timeout_time": "the condition Ready tells it",
  "SandboxProvisioning.cleanup_completed_time": "reclaiming is tried until it succeeds",
  "SandboxProvisioning.cleanup_error": "reclaiming is tried until it succeeds",
  "SandboxProvisioning.cleanup_retry_time": "reclaiming is tried until it succeeds",
  "SandboxProvisioning.attachment_change_id": "attachments are part of the configuration",
  "SandboxProvisioning.attachment_change_time": "attachments are part of the configuration",
  "SandboxProvisioning.preparation_deadline": "a preparation that gets on has no limit",
  "SandboxProvisioning.admission_start_time": "the first refusal starts the window",
  "SandboxProvisioning.driver_operation_pending": "start, stop and delete never wait for the driver",
  "SandboxProvisioning.driver_operation_id": "start, stop and delete never wait for the driver",
  "SandboxStatus.last_token_grant_failure": "token grants are not built yet",
  "ConfigSnapshotRevision.sandbox_config": "only operations of providers are shown, whose target is a provider's",
  "ConfigSnapshotRevision.provider_environment": "as sandbox_config",
  "GetSandboxConfigResponse.extension_authentication_enabled": "middleware services get no token yet",
  "PlatformEvent.metadata": "the gateway's own events have none",
  "SandboxStreamEvent.draft_policy_update": "policy drafts are not built yet",
};

/** A field on the way from a message through its fields. */
export interface FieldPath {
  /** `SandboxTemplate.image` */
  readonly key: string;
  /** `spec.template.image`, in proto names. */
  readonly path: string;
  readonly fields: readonly DescField[];
}

/** Messages that are described as a whole: policies and changes of them have their own checks, the well-known types no fields of ours. */
const OPAQUE = /^google\.protobuf\.|^openshell\.(sandbox\.v1\.SandboxPolicy|v1\.PolicyMergeOperation)$/;

/**
 * All fields of a message and of the messages in it, each type once on every path. What stands below a field whose key `stopAt`
 * holds is left out.
 */
export function fieldPaths(
  schema: DescMessage,
  stopAt: (key: string) => boolean = () => false,
  above: readonly DescField[] = [],
): readonly FieldPath[] {
  return schema.fields.flatMap((field): FieldPath[] => {
    const fields = [...above, field];
    const own = { key: `${schema.name}.${field.name}`, path: fields.map(({ name }) => name).join("."), fields };
    const inner = field.message;
    const again = inner === undefined || OPAQUE.test(inner.typeName) || above.some(({ parent }) => parent === inner);
    return again || stopAt(own.key) ? [own] : [own, ...fieldPaths(inner, stopAt, fields)];
  });
}

/** The gaps of an RPC's requests; those within a field that is one itself are not told again. */
export function gapsOf(rpc: RpcName): readonly (FieldPath & { readonly gap: RequestGap })[] {
  if (compatibility[rpc].state !== "built") return [];
  return fieldPaths(OpenShell.method[rpc].input, (key) => key in requestGaps).flatMap((field) => {
    const gap = requestGaps[field.key];
    return gap === undefined ? [] : [{ ...field, gap }];
  });
}

/** Whether everything that a request of a built RPC may ask for is done. */
export function isComplete(rpc: RpcName): boolean {
  return gapsOf(rpc).every(({ gap }) => gap.answer === "ignored");
}

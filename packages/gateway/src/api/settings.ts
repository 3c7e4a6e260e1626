import { create } from "@bufbuild/protobuf";
import {
  GetGatewayConfigResponseSchema,
  SettingScope,
  type UpdateConfigRequest,
  type UpdateConfigResponse,
  UpdateConfigResponseSchema,
} from "@openshell/api";
import { failedPrecondition, notFound, versionConflict } from "@openshell/api/errors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { NO_EFFECT, SETTINGS } from "@openshell/base/settings.ts";
import { effectiveSettings } from "../settings/effective.ts";
import { settingMessage } from "../settings/registry.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import { GLOBAL_SCOPE, type SandboxRecord, type SettingValue } from "../store/types.ts";
import type { Admission } from "./admission.ts";
import type { ApiDeps } from "./context.ts";
import { write } from "./mutations.ts";

/** Attempts when another writer changes the sandbox at the same time. */
const VERSION_ATTEMPTS = 5;

/** A setting and its new value; undefined: it is unset. */
export interface SettingRequest {
  readonly key: string;
  readonly value: SettingValue | undefined;
}

/** What came of a request. */
export interface SettingChange {
  readonly response: UpdateConfigResponse;
  readonly changed: boolean;
  /** To wait for; empty where nothing is. */
  readonly operationId: string;
}

type Receipt = (response: UpdateConfigResponse) => Uint8Array;

/** The settings of the whole gateway. */
export function settingsHandlers({ store }: Pick<ApiDeps, "store">): Pick<OpenShellImpl, "getGatewayConfig"> {
  return {
    async getGatewayConfig() {
      const { revision, values } = await store.settings.get(GLOBAL_SCOPE);
      const settings = Object.fromEntries(SETTINGS.map(({ key }) => [key, settingMessage(values.get(key))]));
      return create(GetGatewayConfigResponseSchema, { settings, settingsRevision: revision });
    },
  };
}

/** What setting or unsetting does to a scope at this revision: nothing when it is so already. */
function changeOf(deps: ApiDeps, scope: string, old: SettingValue | undefined, { key, value }: SettingRequest) {
  if (old === value) return undefined;
  const { settings } = deps.store;
  return value === undefined ? settings.remove(scope, key) : settings.set(scope, key, value);
}

/** Changes a setting of the gateway. One change at a time: the revision is counted ahead. */
export async function storeGlobalSetting(
  deps: ApiDeps,
  wanted: SettingRequest,
  admission: Admission,
  receipt: Receipt,
): Promise<SettingChange> {
  const { revision, values } = await deps.store.settings.get(GLOBAL_SCOPE);
  const old = values.get(wanted.key);
  const command = changeOf(deps, GLOBAL_SCOPE, old, wanted);
  const changed = command !== undefined;
  const response = create(UpdateConfigResponseSchema, {
    settingsRevision: changed ? revision + 1n : revision,
    deleted: changed && wanted.value === undefined,
  });
  await write(deps, [...admission.admit, ...(changed ? [command] : []), ...admission.succeed(receipt(response))]);
  return { response, changed, operationId: "" };
}

/** Changes a setting of a sandbox, unless the gateway has set it for all. One change of a sandbox at a time. */
export async function storeSandboxSetting(
  deps: ApiDeps,
  record: SandboxRecord,
  request: UpdateConfigRequest,
  wanted: SettingRequest,
  admission: Admission,
  receipt: Receipt,
): Promise<SettingChange> {
  const { store, clock } = deps;
  const { annotations, expectedResourceVersion } = request;
  for (let attempt = 1; ; attempt++) {
    const [current, effective, own] = await Promise.all([
      store.sandboxes.byId(record.id),
      effectiveSettings(store, record.id),
      store.settings.get(record.id),
    ]);
    if (current === undefined) throw notFound("sandbox", record.name);
    if (current.deletionAt !== undefined) {
      const next = "Set it for another sandbox";
      throw failedPrecondition(`sandbox "${record.name}" is being deleted`, { next });
    }
    if (expectedResourceVersion !== 0n && expectedResourceVersion !== current.resourceVersion)
      throw versionConflict("sandbox", record.name, current.resourceVersion);
    if (effective.entries.some(({ key, scope }) => key === wanted.key && scope === SettingScope.GLOBAL)) {
      const next = `Unset it there first: openshell settings delete --global --key ${wanted.key}`;
      throw failedPrecondition(`setting "${wanted.key}" is managed globally`, { next });
    }
    const old = own.values.get(wanted.key);
    const command = changeOf(deps, record.id, old, wanted);
    const changed = command !== undefined;
    const annotated = Object.entries(annotations).some(([key, value]) => current.annotations[key] !== value);
    const settingsRevision = changed ? own.revision + 1n : own.revision;
    const deleted = changed && wanted.value === undefined;
    const response = create(UpdateConfigResponseSchema, { settingsRevision, deleted, annotations });
    const operation = changed ? await deps.operations.begin(current, { settingsRevision }, clock.now()) : undefined;
    const patch = { annotations: { ...current.annotations, ...annotations } };
    const commands: readonly Command<unknown>[] = [
      ...admission.admit,
      ...(operation?.decision.commands ?? []),
      ...(changed ? [command] : []),
      // A new version in any case: whoever removes or changes the sandbox meanwhile meets a conflict, or we do.
      ...(changed || annotated ? [store.sandboxes.update(record.id, current.resourceVersion, patch)] : []),
      ...admission.succeed(receipt(response)),
    ];
    try {
      await write(deps, commands);
    } catch (error) {
      if (!isStoreError(error, "store_conflict") || attempt >= VERSION_ATTEMPTS) throw error;
      continue;
    }
    if (operation !== undefined) deps.operations.tell(operation.decision);
    const feed = deps.feeds.of(record.id);
    if (changed || annotated) feed.changed();
    if (changed) {
      const acted = SETTINGS.some(({ key, hasEffect }) => key === wanted.key && hasEffect);
      const change = `${wanted.key}: ${shownValue(old)} → ${shownValue(wanted.value)}`;
      const message = acted ? change : `${change}; ${NO_EFFECT}`;
      feed.addEvent({ type: "Normal", reason: "SettingChanged", message }, clock.now());
    }
    return { response, changed, operationId: operation?.operationId ?? "" };
  }
}

/** As logs and events name it. */
export function shownValue(value: SettingValue | undefined): string {
  return value === undefined ? "unset" : String(value);
}

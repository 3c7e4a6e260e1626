import { create } from "@bufbuild/protobuf";
import { type EffectiveSetting, EffectiveSettingSchema, SettingScope } from "@openshell/api";
import { SETTINGS } from "@openshell/base/settings.ts";
import { GLOBAL_SCOPE, type Settings, type SettingValue, type Store } from "../store/types.ts";
import { settingMessage } from "./registry.ts";

/** The settings of a sandbox: those of the gateway win over its own. */
export interface EffectiveSettings {
  /** Of the sandbox's own settings. */
  readonly revision: bigint;
  /** Every registered key, in their order; one that nothing sets has no value. */
  readonly entries: readonly {
    readonly key: string;
    readonly value: SettingValue | undefined;
    readonly scope: SettingScope;
  }[];
}

/** Reads both scopes of a sandbox. */
export async function effectiveSettings(store: Pick<Store, "settings">, sandboxId: string): Promise<EffectiveSettings> {
  const [global, own] = await Promise.all([store.settings.get(GLOBAL_SCOPE), store.settings.get(sandboxId)]);
  return mergedSettings(global, own);
}

export function mergedSettings(global: Settings, own: Settings): EffectiveSettings {
  const entries = SETTINGS.map(({ key }) => {
    if (global.values.has(key)) return { key, value: global.values.get(key), scope: SettingScope.GLOBAL };
    if (own.values.has(key)) return { key, value: own.values.get(key), scope: SettingScope.SANDBOX };
    return { key, value: undefined, scope: SettingScope.UNSPECIFIED };
  });
  return { revision: own.revision, entries };
}

/** What a supervisor is sent: the keys that have a value, as text. */
export function deliveredSettings({ entries }: EffectiveSettings): Readonly<Record<string, string>> {
  return Object.fromEntries(entries.flatMap(({ key, value }) => (value === undefined ? [] : [[key, String(value)]])));
}

/** What the API shows of them: every key. */
export function settingMessages({ entries }: EffectiveSettings): Record<string, EffectiveSetting> {
  return Object.fromEntries(
    entries.map(({ key, value, scope }) => {
      const set = value === undefined ? {} : { value: settingMessage(value) };
      return [key, create(EffectiveSettingSchema, { ...set, scope })];
    }),
  );
}

/** Effective settings by key, as the gateway sends them; one that is set nowhere is absent. */
export type Settings = Readonly<Record<string, string>>;

/** JSON records of security events beside the lines. */
export const OCSF_JSON_ENABLED = "ocsf_json_enabled";

/** How people write "yes"; anything else is "no". */
const ON: ReadonlySet<string> = new Set(["1", "true", "yes", "y", "on"]);

export function isOn(settings: Settings, key: string): boolean {
  return ON.has((settings[key] ?? "").trim().toLowerCase());
}

/** One change of one setting, with its words. */
export interface SettingChange {
  readonly message: "Setting changed" | "Setting added" | "Setting removed";
  readonly attributes: Readonly<Record<string, string>>;
}

/** Changes from one map of settings to another, by key. */
export function settingChanges(before: Settings, after: Settings): readonly SettingChange[] {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return keys.flatMap((key): SettingChange[] => {
    const [old, value] = [before[key], after[key]];
    if (old === value) return [];
    if (value === undefined) return [{ message: "Setting removed", attributes: { key } }];
    if (old === undefined) return [{ message: "Setting added", attributes: { key, value } }];
    return [{ message: "Setting changed", attributes: { key, old, new: value } }];
  });
}

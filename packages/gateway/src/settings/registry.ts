import { create } from "@bufbuild/protobuf";
import { type SettingValue as SettingMessage, SettingValueSchema } from "@openshell/api";
import { shown } from "@openshell/api/text.ts";
import type { Violations } from "@openshell/api/violations.ts";
import { type RegisteredSetting, SETTINGS } from "@openshell/base/settings.ts";
import type { SettingValue } from "../store/types.ts";

/** Characters of a key or value that an error repeats. */
const MAX_SHOWN = 64;

/**
 * The setting and the value that a request gives it; undefined value: it is unset. What is wrong is noted in `found`, and
 * then nothing is returned.
 */
export function requestedSetting(
  request: {
    readonly settingKey: string;
    readonly settingValue?: SettingMessage | undefined;
    readonly deleteSetting: boolean;
  },
  found: Violations,
): { readonly key: string; readonly value: SettingValue | undefined } | undefined {
  const { settingKey: key, settingValue, deleteSetting } = request;
  const setting = SETTINGS.find((item) => item.key === key);
  if (setting === undefined) {
    const keys = SETTINGS.map((item) => item.key).join(", ");
    found.add({ field: "setting_key", description: `${shown(key, MAX_SHOWN)} is no setting; one of: ${keys}` });
    return undefined;
  }
  if (deleteSetting) {
    found.require(settingValue === undefined, "setting_value", "must be absent with delete_setting");
    return { key, value: undefined };
  }
  if (settingValue?.value.case === undefined) {
    found.add({ field: "setting_value", description: "must be given, or delete_setting" });
    return undefined;
  }
  const value = typedValue(setting, settingValue.value, found);
  return value === undefined ? undefined : { key, value };
}

function typedValue(
  { key, type, allowed }: RegisteredSetting,
  given: SettingMessage["value"],
  found: Violations,
): SettingValue | undefined {
  const arm = `setting_value.${given.case?.replace("Value", "_value")}`;
  if (type === "bool") {
    if (given.case === "boolValue") return given.value;
    found.add({ field: arm, description: `${key} is a bool: give bool_value` });
    return undefined;
  }
  if (given.case !== "stringValue") {
    found.add({ field: arm, description: `${key} is a string: give string_value` });
    return undefined;
  }
  if (allowed === undefined || allowed.includes(given.value)) return given.value;
  const description = `${key} cannot be ${shown(given.value, MAX_SHOWN)}; one of: ${allowed.join(", ")}`;
  found.add({ field: arm, description });
  return undefined;
}

/** A stored value as the API shows it; one that is not set has no arm. */
export function settingMessage(value: SettingValue | undefined): SettingMessage {
  switch (typeof value) {
    case "undefined":
      return create(SettingValueSchema);
    case "boolean":
      return create(SettingValueSchema, { value: { case: "boolValue", value } });
    case "bigint":
      return create(SettingValueSchema, { value: { case: "intValue", value } });
    default:
      return create(SettingValueSchema, { value: { case: "stringValue", value } });
  }
}

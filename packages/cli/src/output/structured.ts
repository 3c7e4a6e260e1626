import { stringify } from "yaml";

/** YAML of a plain value. In a module of its own: the YAML library is loaded only when asked for. */
export function toYaml(value: unknown): string {
  return stringify(value, { lineWidth: 0 });
}

import { inspect } from "node:util";
import type { DescField, DescMessage, MessageShape } from "@bufbuild/protobuf";

/** What stands in debug output for a value that nobody may see. */
const REDACTED = "[redacted]";

/**
 * Gives a message debug output without its secrets: fields that the schema marks `debug_redact`, at any depth, are
 * {@link REDACTED} in `console.log`, `util.inspect`, `JSON.stringify` and logs. What is sent is not changed. To be called
 * where such a message is made; copies by spreading lose it.
 */
export function redactSecrets<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): MessageShape<Desc> {
  redact(schema, message as unknown as Record<string, unknown>);
  return message;
}

function redact(schema: DescMessage, message: Record<string, unknown>): void {
  for (const field of schema.fields) for (const [desc, value] of nested(field, message)) redact(desc, value);
  const secret = schema.fields.filter(isSecret).map(({ localName }) => localName);
  if (secret.length === 0) return;
  const shown = (): Record<string, unknown> => ({
    ...message,
    ...Object.fromEntries(secret.map((name) => [name, REDACTED])),
  });
  const hidden = { enumerable: false, configurable: true };
  for (const name of secret) {
    // Left out by whatever lists the fields of an object; read by its name as before.
    if (Object.hasOwn(message, name))
      Object.defineProperty(message, name, { ...hidden, writable: true, value: message[name] });
  }
  Object.defineProperty(message, "toJSON", { ...hidden, value: shown });
  Object.defineProperty(message, inspect.custom, { ...hidden, value: shown });
}

/** The messages that a field holds. */
function nested(
  field: DescField,
  message: Record<string, unknown>,
): readonly (readonly [DescMessage, Record<string, unknown>])[] {
  const value =
    field.oneof === undefined ? message[field.localName] : chosen(message[field.oneof.localName], field.localName);
  if (value === undefined || value === null) return [];
  if (field.fieldKind === "message") return [[field.message, value as Record<string, unknown>]];
  if (field.fieldKind === "list" && field.listKind === "message")
    return (value as Record<string, unknown>[]).map((item) => [field.message, item]);
  if (field.fieldKind === "map" && field.mapKind === "message")
    return Object.values(value as Record<string, Record<string, unknown>>).map((item) => [field.message, item]);
  return [];
}

function chosen(oneof: unknown, name: string): unknown {
  const { case: which, value } = oneof as { readonly case?: string; readonly value?: unknown };
  return which === name ? value : undefined;
}

function isSecret(field: DescField): boolean {
  return field.proto.options?.debugRedact === true;
}

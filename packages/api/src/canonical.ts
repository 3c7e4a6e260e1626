import {
  type DescField,
  type DescMessage,
  isMessage,
  type Message,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";

/**
 * The bytes of a message that stand for its meaning: equal for equal messages whatever the order of map entries, different when any value or the
 * presence of any message or optional field differs. Fields named in `without` (proto names, top level) are left out.
 *
 * Fields unknown to this build count too, in the order received: a request that this build cannot fully read never equals another.
 */
export function canonicalBytes<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  without: readonly string[] = [],
): Uint8Array {
  const copy = ordered(schema, message) as MessageShape<Desc>;
  if (without.length > 0) {
    const reflected = reflect(schema, copy);
    for (const field of schema.fields) if (without.includes(field.name)) reflected.clear(field);
  }
  return toBinary(schema, copy);
}

/** The message with every map in it in key order, which binary output follows. What holds no map is shared. */
function ordered(schema: DescMessage, message: Message): Message {
  const copy = Object.assign(Object.create(Object.getPrototypeOf(message) as object), message) as Message;
  const fields = copy as unknown as Record<string, unknown>;
  for (const field of schema.fields) {
    if (field.oneof !== undefined) {
      const chosen = fields[field.oneof.localName] as { readonly case?: string; readonly value?: unknown };
      if (chosen.case === field.localName && field.message !== undefined)
        fields[field.oneof.localName] = { case: chosen.case, value: orderedPart(field.message, chosen.value) };
      continue;
    }
    const value = fields[field.localName];
    if (value !== undefined) fields[field.localName] = orderedField(field, value);
  }
  return copy;
}

function orderedField(field: DescField, value: unknown): unknown {
  switch (field.fieldKind) {
    case "message":
      return orderedPart(field.message, value);
    case "list":
      return field.message === undefined
        ? value
        : (value as unknown[]).map((item) => orderedPart(field.message!, item));
    case "map": {
      const entries = sorted(value as Record<string, unknown>);
      if (field.message === undefined) return Object.fromEntries(entries);
      return Object.fromEntries(entries.map(([key, item]) => [key, orderedPart(field.message!, item)]));
    }
    default:
      return value;
  }
}

/** A google.protobuf.Struct is held as a plain object, and wrappers as what they wrap. */
function orderedPart(schema: DescMessage, value: unknown): unknown {
  return isMessage(value) ? ordered(schema, value) : orderedJson(value);
}

function orderedJson(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(orderedJson);
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return value;
  return Object.fromEntries(sorted(value as Record<string, unknown>).map(([key, item]) => [key, orderedJson(item)]));
}

function sorted(map: Readonly<Record<string, unknown>>): [string, unknown][] {
  return Object.entries(map).toSorted(([a], [b]) => (a < b ? -1 : 1));
}

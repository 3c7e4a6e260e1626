import { clone, type DescMessage, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";

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
  const copy = clone(schema, message);
  const reflected = reflect(schema, copy);
  for (const field of schema.fields) if (without.includes(field.name)) reflected.clear(field);
  sortMaps(reflected);
  return toBinary(schema, copy);
}

/** Rewrites every map below `message` in key order: binary output follows insertion order. */
function sortMaps(message: ReflectMessage): void {
  for (const field of message.fields) {
    if (!message.isSet(field)) continue;
    if (field.fieldKind === "message") {
      const child = message.get(field);
      sortMaps(child);
      // A google.protobuf.Struct is held as a plain object: what `get` gave is a copy, which has to be put back.
      message.set(field, child);
    } else if (field.fieldKind === "list" && field.listKind === "message") {
      const list = message.get(field);
      for (const [index, item] of [...list].entries()) {
        sortMaps(item as ReflectMessage);
        list.set(index, item);
      }
    } else if (field.fieldKind === "map") {
      const map = message.get(field);
      const entries = [...map.entries()].toSorted(([a], [b]) => (String(a) < String(b) ? -1 : 1));
      map.clear();
      for (const [key, value] of entries) {
        if (field.mapKind === "message") sortMaps(value as ReflectMessage);
        map.set(key, value);
      }
    }
  }
}

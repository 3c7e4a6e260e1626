import { type DescMessage, type MessageShape, toBinary } from "@bufbuild/protobuf";

/** Tag and length of a field, or a number with its tag: at most so many bytes. */
const FIELD_BYTES = 20;
/** Of a UTF-16 unit in UTF-8. */
const UNIT_BYTES = 3;

/** Of what can never change any more: policies, which many sandboxes share. */
const known = new WeakMap<object, number>();

/** Whether the encoded message is at most `limit` bytes long. It is encoded for that only where it might not be. */
export function fits<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>, limit: number): boolean {
  return mostBytes(message) <= limit || toBinary(schema, message).length <= limit;
}

/** At least as many as the value takes up encoded: every field of it counts with its name, whether it is a key or not. */
export function mostBytes(value: unknown): number {
  switch (typeof value) {
    case "string":
      return FIELD_BYTES + UNIT_BYTES * value.length;
    case "object":
      return value === null ? FIELD_BYTES : ofObject(value);
    case "function":
    case "undefined":
      return 0;
    default:
      return FIELD_BYTES;
  }
}

function ofObject(value: object): number {
  if (ArrayBuffer.isView(value)) return FIELD_BYTES + value.byteLength;
  const counted = known.get(value);
  if (counted !== undefined) return counted;
  let bytes = FIELD_BYTES;
  if (Array.isArray(value)) for (const item of value) bytes += mostBytes(item);
  else {
    // Secrets are hidden from whatever lists the fields of an object (redaction.ts), and sent all the same.
    for (const name of Object.getOwnPropertyNames(value))
      bytes += mostBytes(name) + mostBytes((value as Record<string, unknown>)[name]);
  }
  if (Object.isFrozen(value)) known.set(value, bytes);
  return bytes;
}

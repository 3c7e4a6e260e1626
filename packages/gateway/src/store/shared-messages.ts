import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { deepFreeze } from "./frozen.ts";
import { WeightedCache } from "./read-cache.ts";

/** Of a decoded message for each byte of it, roughly. */
const DECODED_BYTES = 8;

/**
 * Decodes stored messages that many rows have in common, each once: equal bytes give the same message. It is frozen, since
 * it is shared. `maxBytes`: of the messages that are kept for this, with their keys.
 */
export function sharedMessages<Desc extends DescMessage>(
  schema: Desc,
  maxBytes: number,
): (bytes: Uint8Array) => MessageShape<Desc> {
  const decoded = new WeightedCache<MessageShape<Desc>>(maxBytes);
  return (bytes) => {
    const key = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1");
    const known = decoded.get(key)?.value;
    if (known !== undefined) return known;
    const message = deepFreeze(fromBinary(schema, bytes));
    decoded.set(key, message, bytes.length * (1 + DECODED_BYTES));
    return message;
  };
}

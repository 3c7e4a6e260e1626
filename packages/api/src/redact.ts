import { clone, type DescField, type DescMessage, getOption, type MessageShape, ScalarType } from "@bufbuild/protobuf";
import { type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";
import { secret } from "./generated/options_pb.js";

/** What stands in a log for a secret text. */
export const REDACTED = "[redacted]";

const redactedBytes = new TextEncoder().encode(REDACTED);

/**
 * A copy of a message whose fields marked `secret` hold a fixed text (map keys stay), at any depth, and without fields unknown to this build,
 * which may be secret too. For logs and audit only. `environment`, `files` and stdin are not marked in the wire definitions: do not log them.
 */
export function redactSecrets<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): MessageShape<Desc> {
  const copy = clone(schema, message);
  redact(reflect(schema, copy));
  return copy;
}

function redact(message: ReflectMessage): void {
  message.setUnknown([]);
  for (const field of message.fields) {
    if (!message.isSet(field)) continue;
    if (getOption(field, secret)) hide(message, field);
    else if (field.fieldKind === "message") {
      const child = message.get(field);
      redact(child);
      message.set(field, child);
    } else if (field.fieldKind === "list" && field.listKind === "message") {
      for (const item of message.get(field)) redact(item as ReflectMessage);
    } else if (field.fieldKind === "map" && field.mapKind === "message") {
      for (const item of message.get(field).values()) redact(item as ReflectMessage);
    }
  }
}

function hide(message: ReflectMessage, field: DescField): void {
  if (field.fieldKind === "map" && field.mapKind === "scalar" && field.scalar === ScalarType.STRING) {
    const map = message.get(field);
    for (const key of [...map.keys()]) map.set(key, REDACTED);
  } else if (field.fieldKind === "scalar" && field.scalar === ScalarType.STRING) {
    message.set(field, REDACTED);
  } else if (field.fieldKind === "scalar" && field.scalar === ScalarType.BYTES) {
    message.set(field, redactedBytes);
  } else {
    message.clear(field);
  }
}

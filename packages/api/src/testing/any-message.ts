import { type DescField, type DescMessage, fromBinary, type Message, ScalarType } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";

const KEYS = ["b", "a", "10", "9", "é", "", "__proto__", "constructor", "B"];
const MAX_DEPTH = 6;

/** A number from 0 that is less than `below`. */
export type Pick = (below: number) => number;

/** Picks by these numbers, over and over. */
export function picker(numbers: readonly number[]): Pick {
  let at = 0;
  return (below) => numbers[at++ % numbers.length]! % below;
}

/** A message with any of its fields, filled in any way, and sometimes with one that its schema does not have. */
export function anyMessage(schema: DescMessage, pick: Pick): Message {
  return fromBinary<DescMessage>(schema, anyBytes(schema, pick));
}

function anyBytes(schema: DescMessage, pick: Pick, depth = 0): Uint8Array {
  const writer = new BinaryWriter();
  const fields = schema.fields.toSorted(() => pick(3) - 1);
  for (const field of fields) {
    if (pick(3) === 0) continue;
    const times = field.fieldKind === "list" || field.fieldKind === "map" ? pick(4) : 1;
    for (let time = 0; time < times; time += 1) writeField(writer, field, pick, depth);
  }
  if (pick(8) === 0) writer.tag(4_999, WireType.Varint).uint32(pick(100));
  return writer.finish();
}

function writeField(writer: BinaryWriter, field: DescField, pick: Pick, depth: number): void {
  if (field.message !== undefined && depth >= MAX_DEPTH) return;
  if (field.fieldKind === "map") {
    writer.tag(field.number, WireType.LengthDelimited).fork();
    writer.tag(1, WireType.LengthDelimited).string(KEYS[pick(KEYS.length)]!);
    writeValue(writer, 2, field, pick, depth);
    writer.join();
  } else writeValue(writer, field.number, field, pick, depth);
}

function writeValue(writer: BinaryWriter, no: number, field: DescField, pick: Pick, depth: number): void {
  if (field.message !== undefined) {
    writer.tag(no, WireType.LengthDelimited).bytes(anyBytes(field.message, pick, depth + 1));
    return;
  }
  switch (field.scalar) {
    case ScalarType.STRING:
      writer.tag(no, WireType.LengthDelimited).string(["", "x", "ü".repeat(pick(5))][pick(3)]!);
      break;
    case ScalarType.BYTES:
      writer.tag(no, WireType.LengthDelimited).bytes(Uint8Array.from({ length: pick(4) }, () => pick(256)));
      break;
    case ScalarType.DOUBLE:
      writer.tag(no, WireType.Bit64).double(pick(1000) / 8);
      break;
    case ScalarType.FLOAT:
      writer.tag(no, WireType.Bit32).float(pick(1000) / 8);
      break;
    default:
      writer.tag(no, WireType.Varint).uint32(pick(3));
  }
}

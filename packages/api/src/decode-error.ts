import { type DescField, type DescMessage, fromBinary } from "@bufbuild/protobuf";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { type ApiError, invalidArgument } from "./errors.ts";
import { WorkspaceSelectorSchema } from "./generated/datamodel_pb.js";
import type { FieldViolation } from "./violations.ts";

/** Messages in messages that are looked into for the field that is wrong. */
const MAX_DEPTH = 8;
/** Fields that are looked at, at all depths: whoever sends bytes that do not decode may send millions of them. */
const MAX_FIELDS = 1_000;

const utf8 = new TextDecoder("utf-8", { fatal: true });

const OTHER_RELEASE = "the caller may be made for another release of the API: this gateway speaks 0.1";

/**
 * INVALID_ARGUMENT for request bytes that `schema` could not be decoded from, naming the field. Clients of release 0.0.x send
 * text where a workspace selector stands now, and other kinds of values at numbers that were given away anew: they are told, and
 * never given a workspace that they did not name.
 */
export function undecodable(schema: DescMessage, bytes: Uint8Array): ApiError {
  const search: Search = { left: MAX_FIELDS };
  const { violations, complete } = problems(schema, bytes, "", 0, search);
  if (violations.length === 0) {
    const what = complete ? "cannot be decoded" : "ends in the middle of a field, or holds what is no field";
    violations.push({ field: "request", description: `${what} as ${schema.typeName}; ${OTHER_RELEASE}` });
  }
  return invalidArgument(violations);
}

/** What may still be looked at. */
interface Search {
  left: number;
}

interface Found {
  readonly violations: FieldViolation[];
  /** Whether the bytes could be read to their end as fields. */
  readonly complete: boolean;
}

function problems(schema: DescMessage, bytes: Uint8Array, path: string, depth: number, search: Search): Found {
  const violations: FieldViolation[] = [];
  const seen = new Set<number>();
  const complete = eachField(bytes, search, (number, wireType, data) => {
    const field = schema.fields.find((candidate) => candidate.number === number);
    if (field === undefined) return;
    seen.add(number);
    const found = fieldProblem(field, wireType, data, path, depth, search);
    if (found !== undefined) violations.push(...found);
  });
  const scope = schema.fields.find((field) => field.message === WorkspaceSelectorSchema);
  if (scope === undefined) return { violations, complete };
  // The selector first: it is what a client of another release has to be told.
  const name = path + scope.name;
  const own = violations.filter(({ field }) => field === name);
  if (!seen.has(scope.number) && search.left > 0)
    own.push({ field: name, description: `is required; ${OTHER_RELEASE}` });
  return { violations: [...own, ...violations.filter(({ field }) => field !== name)], complete };
}

function fieldProblem(
  field: DescField,
  wireType: WireType,
  data: Uint8Array,
  path: string,
  depth: number,
  search: Search,
): FieldViolation[] | undefined {
  const name = path + field.name;
  if (!wireTypesOf(field).includes(wireType))
    return [{ field: name, description: `was sent as another type of value; ${OTHER_RELEASE}` }];
  const schema = field.fieldKind === "message" || field.fieldKind === "list" ? field.message : undefined;
  if (schema === undefined) return isText(field) ? textProblem(name, data) : undefined;
  try {
    fromBinary(schema, data);
    return undefined;
  } catch {
    if (schema === WorkspaceSelectorSchema)
      return [{ field: name, description: `must be a WorkspaceSelector, not a name alone; ${OTHER_RELEASE}` }];
    const inner = depth < MAX_DEPTH ? problems(schema, data, `${name}.`, depth + 1, search).violations : [];
    return inner.length > 0 ? inner : [{ field: name, description: `cannot be decoded as ${schema.typeName}` }];
  }
}

function isText(field: DescField): boolean {
  return (field.fieldKind === "scalar" || field.fieldKind === "list") && field.scalar === 9;
}

function textProblem(field: string, data: Uint8Array): FieldViolation[] | undefined {
  try {
    utf8.decode(data);
    return undefined;
  } catch {
    return [{ field, description: "must be UTF-8 text" }];
  }
}

/** Wire types that a field may be sent as; a list of numbers is packed or not. */
function wireTypesOf(field: DescField): readonly WireType[] {
  if (field.fieldKind === "message" || field.fieldKind === "map") return [WireType.LengthDelimited];
  if (field.fieldKind === "enum") return [WireType.Varint];
  if (field.fieldKind === "list") {
    if (field.listKind === "message") return [WireType.LengthDelimited];
    const one = field.listKind === "enum" ? WireType.Varint : scalarWireType(field.scalar);
    return one === WireType.LengthDelimited ? [one] : [one, WireType.LengthDelimited];
  }
  return [scalarWireType(field.scalar)];
}

function scalarWireType(scalar: number): WireType {
  switch (scalar) {
    case 1: // double
    case 6: // fixed64
    case 16: // sfixed64
      return WireType.Bit64;
    case 2: // float
    case 7: // fixed32
    case 15: // sfixed32
      return WireType.Bit32;
    case 9: // string
    case 12: // bytes
      return WireType.LengthDelimited;
    default:
      return WireType.Varint;
  }
}

/** Calls `visit` for the fields of a message, in order. False when they end before the bytes do, or at the limit. */
function eachField(
  bytes: Uint8Array,
  search: Search,
  visit: (number: number, wireType: WireType, data: Uint8Array) => void,
): boolean {
  const reader = new BinaryReader(bytes);
  try {
    while (reader.pos < reader.len) {
      if (search.left-- <= 0) return false;
      const [number, wireType] = reader.tag();
      const start = reader.pos;
      const data = wireType === WireType.LengthDelimited ? reader.bytes() : undefined;
      if (data === undefined) reader.skip(wireType, number);
      visit(number, wireType, data ?? bytes.subarray(start, reader.pos));
    }
    return true;
  } catch {
    return false;
  }
}

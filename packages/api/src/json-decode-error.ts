import { type DescField, type DescMessage, fromJson, type JsonValue } from "@bufbuild/protobuf";
import { type ApiError, invalidArgument } from "./errors.ts";
import type { FieldViolation } from "./violations.ts";

/** Messages in messages that are looked into for the field that is wrong. */
const MAX_DEPTH = 8;
/** Fields, entries and items that are tried, at all depths. */
const MAX_TRIED = 500;

/** Unknown keys are mistakes: whoever writes JSON by hand would not learn that a misspelt one means nothing. */
const READ = { ignoreUnknownFields: false };

/**
 * INVALID_ARGUMENT for JSON that `schema` cannot be read from, naming the field. What the caller wrote is never repeated, keys apart: it may
 * be a secret, and the text of the library quotes it.
 */
export function undecodableJson(schema: DescMessage, text: string): ApiError {
  let value: JsonValue;
  try {
    value = JSON.parse(text) as JsonValue;
  } catch {
    return invalidArgument([{ field: "request", description: "is not JSON" }]);
  }
  const found = problem(schema, value, "", 0, { left: MAX_TRIED });
  return invalidArgument([found ?? { field: "request", description: `cannot be read as ${schema.typeName}` }]);
}

/** INVALID_ARGUMENT for a request whose bytes are no text: replacing them would store something else than was sent. */
export function notUtf8(): ApiError {
  return invalidArgument([{ field: "request", description: "is not UTF-8" }]);
}

interface Search {
  left: number;
}

function problem(
  schema: DescMessage,
  value: JsonValue | undefined,
  path: string,
  depth: number,
  search: Search,
): FieldViolation | undefined {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    const field = path === "" ? "request" : path.slice(0, -1);
    return { field, description: `must be an object, a ${schema.typeName}` };
  }
  for (const [key, inner] of Object.entries(value)) {
    if (search.left-- <= 0) return undefined;
    const field = schema.fields.find(({ name, jsonName }) => key === name || key === jsonName);
    if (field === undefined) return { field: `${path}${key}`, description: "is not known to this gateway" };
    if (isReadable(schema, { [key]: inner })) continue;
    return inside(field, inner, `${path}${field.name}`, depth, search);
  }
  return undefined;
}

/** The part of a field that is wrong, else the field. */
function inside(field: DescField, value: JsonValue, path: string, depth: number, search: Search): FieldViolation {
  const own = { field: path, description: `must be ${wanted(field)}` };
  const schema = field.message;
  if (schema === undefined || schema.typeName.startsWith("google.protobuf.") || depth >= MAX_DEPTH) return own;
  if (field.fieldKind === "message") return problem(schema, value, `${path}.`, depth + 1, search) ?? own;
  if (typeof value !== "object" || value === null || Array.isArray(value) !== (field.fieldKind === "list")) return own;
  for (const [key, item] of Object.entries(value)) {
    if (search.left-- <= 0) return own;
    if (item === undefined || isReadable(schema, item)) continue;
    return problem(schema, item, `${path}[${key}].`, depth + 1, search) ?? own;
  }
  return own;
}

function isReadable(schema: DescMessage, value: JsonValue): boolean {
  try {
    fromJson(schema, value, READ);
    return true;
  } catch {
    return false;
  }
}

function wanted(field: DescField): string {
  if (field.fieldKind === "list") return "a list of values of its kind";
  if (field.fieldKind === "map") return "an object with values of its kind";
  if (field.enum !== undefined) return `a ${field.enum.typeName}`;
  return field.message === undefined ? "a value of its kind, in its bounds" : `a ${field.message.typeName}`;
}

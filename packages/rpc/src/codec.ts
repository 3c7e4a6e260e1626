import {
  create,
  type DescMessage,
  fromBinary,
  fromJsonString,
  isMessage,
  type JsonReadOptions,
  type JsonWriteOptions,
  type MessageInitShape,
  type MessageShape,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { encodedBytes } from "./encoded.ts";

export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions>;

/** How messages become bytes: `application/grpc+proto`, or ProtoJSON for `application/grpc+json`. */
export interface Codec {
  readonly contentType: string;
  encode<Desc extends DescMessage>(schema: Desc, message: MessageInitShape<Desc>): Uint8Array;
  /** @throws ConnectError INVALID_ARGUMENT */
  decode<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc>;
}

/** A complete message of what may be only its fields. */
export function complete<Desc extends DescMessage>(schema: Desc, message: MessageInitShape<Desc>): MessageShape<Desc> {
  return isMessage(message, schema) ? (message as MessageShape<Desc>) : create(schema, message);
}

export const protoCodec: Codec = {
  contentType: "application/grpc+proto",
  encode: (schema, message) => encodedBytes(message) ?? toBinary(schema, complete(schema, message)),
  decode: (schema, bytes) => decoding(schema, () => fromBinary(schema, bytes)),
};

/** ProtoJSON. Unknown fields are ignored unless the options say otherwise, as peers of other versions need. */
export function jsonCodec(options: JsonOptions = {}): Codec {
  const read = { ignoreUnknownFields: true, ...options };
  return {
    contentType: "application/grpc+json",
    encode: (schema, message) => {
      const bytes = encodedBytes(message);
      const known = bytes === undefined ? complete(schema, message) : fromBinary(schema, bytes);
      return Buffer.from(toJsonString(schema, known, options), "utf8");
    },
    decode: (schema, bytes) =>
      decoding(schema, () => fromJsonString(schema, new TextDecoder("utf-8", { fatal: true }).decode(bytes), read)),
  };
}

/** The codec that a content type asks for; undefined for one that is no gRPC, null for an unknown codec. */
export function codecOf(contentType: string | undefined, json: Codec): Codec | null | undefined {
  if (contentType === "application/grpc" || contentType === "application/grpc+proto") return protoCodec;
  const match = /^application\/grpc(?:\+([a-z0-9.-]+))?(?:\s*;.*)?$/i.exec(contentType ?? "");
  if (match === null) return undefined;
  const name = match[1]?.toLowerCase() ?? "proto";
  if (name === "proto") return protoCodec;
  return name === "json" ? json : null;
}

function decoding<Message>(schema: DescMessage, decode: () => Message): Message {
  try {
    return decode();
  } catch (cause) {
    // The library's text may quote what it read, which may be a secret.
    throw new ConnectError(`the bytes are no ${schema.typeName}`, Code.InvalidArgument, undefined, undefined, cause);
  }
}

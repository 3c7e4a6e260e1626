import { create, createFileRegistry, toBinary } from "@bufbuild/protobuf";
import type { GenMessage, GenService } from "@bufbuild/protobuf/codegenv2";
import {
  type BytesValue,
  BytesValueSchema,
  FileDescriptorProtoSchema,
  FileDescriptorSetSchema,
  file_google_protobuf_wrappers,
} from "@bufbuild/protobuf/wkt";

/**
 * The service by which RPC libraries are compared, as a descriptor made here. Every server and every client that is a
 * library decodes and encodes the same protobuf-es messages, so what differs is the library.
 */

type Payload = GenMessage<BytesValue>;

const PACKAGE = "openshell.bench.v1";
const type = `.${BytesValueSchema.typeName}`;
const file = create(FileDescriptorProtoSchema, {
  name: "openshell/bench/v1/bench.proto",
  package: PACKAGE,
  dependency: [file_google_protobuf_wrappers.proto.name],
  syntax: "proto3",
  service: [
    {
      name: "Bench",
      method: [
        { name: "Unary", inputType: type, outputType: type },
        { name: "Echo", inputType: type, outputType: type, clientStreaming: true, serverStreaming: true },
        { name: "Download", inputType: type, outputType: type, serverStreaming: true },
      ],
    },
  ],
});

const registry = createFileRegistry(
  create(FileDescriptorSetSchema, { file: [file_google_protobuf_wrappers.proto, file] }),
);

/**
 * `Unary` and `Echo` give back what they got. `Download` sends messages of {@link CHUNK_BYTES} until it has sent as many
 * bytes as its request says in decimal digits.
 */
export const Bench = registry.getService(`${PACKAGE}.Bench`) as unknown as GenService<{
  unary: { methodKind: "unary"; input: Payload; output: Payload };
  echo: { methodKind: "bidi_streaming"; input: Payload; output: Payload };
  download: { methodKind: "server_streaming"; input: Payload; output: Payload };
}>;

export const UNARY_BYTES = 32;
export const ECHO_BYTES = 16 * 1024;
export const CHUNK_BYTES = 64 * 1024;

/** What is compared. `bare`: bytes over node:http2 and nothing else, the floor below every library that is built on it. */
export const LIBRARIES = ["lane", "grpc-js", "connect-node", "bare"] as const;
export type Library = (typeof LIBRARIES)[number];

export function payload(bytes: number): BytesValue {
  return create(BytesValueSchema, { value: Buffer.alloc(bytes, "openshell ") });
}

export const encodePayload = (message: BytesValue): Buffer => {
  const bytes = toBinary(BytesValueSchema, message);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
};

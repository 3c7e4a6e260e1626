import { create, createFileRegistry, type DescService } from "@bufbuild/protobuf";
import type { GenService } from "@bufbuild/protobuf/codegenv2";
import {
  type BytesValueSchema,
  FileDescriptorProtoSchema,
  FileDescriptorSetSchema,
  file_google_protobuf_wrappers,
} from "@bufbuild/protobuf/wkt";

/** A service of tests: bytes in, bytes out, one method a kind of stream. */
export type EchoService = GenService<{
  unary: { methodKind: "unary"; input: typeof BytesValueSchema; output: typeof BytesValueSchema };
  clientStream: { methodKind: "client_streaming"; input: typeof BytesValueSchema; output: typeof BytesValueSchema };
  serverStream: { methodKind: "server_streaming"; input: typeof BytesValueSchema; output: typeof BytesValueSchema };
  bidiStream: { methodKind: "bidi_streaming"; input: typeof BytesValueSchema; output: typeof BytesValueSchema };
}>;

const TYPE = ".google.protobuf.BytesValue";
const method = (name: string, clientStreaming: boolean, serverStreaming: boolean) => ({
  name,
  inputType: TYPE,
  outputType: TYPE,
  clientStreaming,
  serverStreaming,
});

const file = create(FileDescriptorProtoSchema, {
  name: "openshell/rpc/testing/echo.proto",
  package: "openshell.rpc.testing",
  syntax: "proto3",
  dependency: ["google/protobuf/wrappers.proto"],
  service: [
    {
      name: "Echo",
      method: [
        method("Unary", false, false),
        method("ClientStream", true, false),
        method("ServerStream", false, true),
        method("BidiStream", true, true),
      ],
    },
  ],
});

const registry = createFileRegistry(
  create(FileDescriptorSetSchema, { file: [file_google_protobuf_wrappers.proto, file] }),
);

export const Echo = registry.getService("openshell.rpc.testing.Echo") as DescService as EchoService;

import { create, createFileRegistry } from "@bufbuild/protobuf";
import type { GenMessage, GenService } from "@bufbuild/protobuf/codegenv2";
import {
  type BytesValue,
  BytesValueSchema,
  FileDescriptorProtoSchema,
  FileDescriptorSetSchema,
  file_google_protobuf_wrappers,
} from "@bufbuild/protobuf/wkt";
import { METHOD, SERVICE } from "./protocol.ts";

/** The service of the peers, as a descriptor made here: there is no generated code on either side. */

type Payload = GenMessage<BytesValue>;

type EchoMethods = {
  unary: { methodKind: "unary"; input: Payload; output: Payload };
  serverStream: { methodKind: "server_streaming"; input: Payload; output: Payload };
  clientStream: { methodKind: "client_streaming"; input: Payload; output: Payload };
  bidi: { methodKind: "bidi_streaming"; input: Payload; output: Payload };
};

const type = `.${BytesValueSchema.typeName}`;
const dot = SERVICE.lastIndexOf(".");
const file = create(FileDescriptorProtoSchema, {
  name: "openshell/test/v1/echo.proto",
  package: SERVICE.slice(0, dot),
  dependency: [file_google_protobuf_wrappers.proto.name],
  syntax: "proto3",
  service: [
    {
      name: SERVICE.slice(dot + 1),
      method: Object.entries(METHOD).map(([kind, name]) => ({
        name,
        inputType: type,
        outputType: type,
        clientStreaming: kind === "client" || kind === "bidi",
        serverStreaming: kind === "server" || kind === "bidi",
      })),
    },
  ],
});

const registry = createFileRegistry(
  create(FileDescriptorSetSchema, { file: [file_google_protobuf_wrappers.proto, file] }),
);

/** `openshell.test.v1.Echo`: four methods, one a kind of stream, from BytesValue to BytesValue. */
export const Echo = registry.getService(SERVICE) as unknown as GenService<EchoMethods>;

import { readFileSync } from "node:fs";
import { type DescField, type DescMessage, type DescService, getOption, ScalarType } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { file_datamodel } from "./generated/datamodel_pb.js";
import { file_openshell } from "./generated/openshell_pb.js";
import { authorization, file_options, secret } from "./generated/options_pb.js";
import { file_sandbox } from "./generated/sandbox_pb.js";

/** number, name, type, label, oneof, options. */
type FieldFact = readonly [number, string, string, string, string, (readonly string[])?];
interface WireFacts {
  readonly messages: Readonly<
    Record<string, { readonly fields: readonly FieldFact[]; readonly reserved: readonly string[] }>
  >;
  readonly enums: Readonly<Record<string, readonly (readonly [string, number])[]>>;
  readonly rpcs: readonly (readonly [string, string, string, boolean, boolean, Readonly<Record<string, string>>])[];
  readonly extensions: readonly (readonly [string, string, number, string])[];
}

const facts = JSON.parse(readFileSync(new URL("./testdata/wire.json", import.meta.url), "utf8")) as WireFacts;
const files = [file_options, file_datamodel, file_sandbox, file_openshell];
const messages = files.flatMap((file) => file.messages);
const enums = files.flatMap((file) => file.enums);
const services = files.flatMap((file) => file.services);

/** The type of a field as the facts write it: scalar name, full message or enum name, or `map<key, value>`. */
function typeName(field: DescField): string {
  const element = field.message?.typeName ?? field.enum?.typeName ?? scalarName(field.scalar);
  return field.fieldKind === "map" ? `map<${scalarName(field.mapKey)}, ${element}>` : element;
}

function scalarName(scalar: ScalarType | undefined): string {
  return scalar === undefined ? "" : ScalarType[scalar].toLowerCase();
}

function label(field: DescField): string {
  if (field.fieldKind === "list") return "repeated";
  return field.proto.proto3Optional ? "optional" : "";
}

function fieldFact(field: DescField): FieldFact {
  const fact = [field.number, field.name, typeName(field), label(field), field.oneof?.name ?? ""] as const;
  return getOption(field, secret) ? [...fact, ["secret"]] : fact;
}

const byNumber = (fields: readonly FieldFact[]): readonly FieldFact[] => fields.toSorted((a, b) => a[0] - b[0]);

/** Reserved ranges with an inclusive end, as the facts write them (a descriptor's end is exclusive). */
function reserved(message: DescMessage): readonly string[] {
  return message.proto.reservedRange.map((range) => `${range.start}-${range.end! - 1}`).toSorted();
}

function rpcFacts(service: DescService): WireFacts["rpcs"] {
  return service.methods.map((method) => {
    const rule = getOption(method, authorization);
    const named = {
      auth_mode: rule.authMode,
      workspace_role: rule.workspaceRole,
      global_role: rule.globalRole,
      scope: rule.scope,
    };
    const set = Object.fromEntries(Object.entries(named).filter(([, value]) => value !== ""));
    const client = method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming";
    const server = method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming";
    return [method.name, method.input.typeName, method.output.typeName, client, server, set] as const;
  });
}

describe("wire compatibility with the public 0.1 API", () => {
  it("has the file names, packages and syntax that clients of the descriptors expect", () => {
    expect(files.map((file) => [`${file.name}.proto`, file.proto.package, file.proto.syntax])).toEqual([
      ["options.proto", "openshell.options.v1", "proto3"],
      ["datamodel.proto", "openshell.datamodel.v1", "proto3"],
      ["sandbox.proto", "openshell.sandbox.v1", "proto3"],
      ["openshell.proto", "openshell.v1", "proto3"],
    ]);
  });

  it("has exactly the known messages, none nested but map entries", () => {
    expect(messages.map((message) => message.typeName).toSorted()).toEqual(Object.keys(facts.messages).toSorted());
    expect(
      messages.flatMap((message) => message.nestedMessages.filter((nested) => !nested.proto.options?.mapEntry)),
    ).toEqual([]);
    expect(messages.flatMap((message) => message.nestedEnums)).toEqual([]);
  });

  it.each(messages.map((message) => [message.typeName, message] as const))(
    "%s has the known fields and reserved numbers",
    (name, message) => {
      const fact = facts.messages[name]!;
      expect(byNumber(message.fields.map(fieldFact))).toEqual(byNumber(fact.fields));
      expect(reserved(message)).toEqual(fact.reserved.toSorted());
      expect(message.proto.reservedName).toEqual([]);
    },
  );

  it("keeps the JSON names that proto3 derives", () => {
    const camel = (name: string) => name.replace(/_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
    for (const field of messages.flatMap((message) => message.fields)) expect(field.jsonName).toBe(camel(field.name));
  });

  it("has exactly the known enums with their values", () => {
    const found = Object.fromEntries(
      enums.map((desc) => [desc.typeName, desc.values.map((value) => [value.name, value.number])]),
    );
    expect(found).toEqual(facts.enums);
  });

  it("has exactly the known RPCs with streams and authorization", () => {
    expect(services.map((service) => service.typeName)).toEqual(["openshell.v1.OpenShell"]);
    const sorted = (rpcs: WireFacts["rpcs"]) => rpcs.toSorted((a, b) => (a[0] < b[0] ? -1 : 1));
    expect(sorted(rpcFacts(services[0]!))).toEqual(sorted(facts.rpcs));
    expect(facts.rpcs).toHaveLength(84);
  });

  it("has the known options", () => {
    const found = files
      .flatMap((file) => file.extensions)
      .map((extension) => {
        const type = extension.message?.typeName ?? scalarName(extension.scalar);
        return [extension.name, extension.extendee.typeName, extension.number, type];
      });
    expect(found.toSorted()).toEqual(facts.extensions.toSorted());
  });
});

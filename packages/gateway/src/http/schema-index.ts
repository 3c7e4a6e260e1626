import { type DescFile, type DescService, toBinary } from "@bufbuild/protobuf";
import {
  type DescriptorProto,
  type EnumDescriptorProto,
  type FieldDescriptorProto,
  FileDescriptorProtoSchema,
} from "@bufbuild/protobuf/wkt";

/**
 * What may be known of a server's schema: the files that declare its services, all they import, and everything these
 * declare by name. A file that no given service or file leads to does not exist here.
 */
export class SchemaIndex {
  /** Full names of the services, in the order given. */
  readonly services: readonly string[];
  readonly #files = new Map<string, DescFile>();
  readonly #symbols = new Map<string, DescFile>();
  /** Full name of an extended message → number → the file that declares the extension. */
  readonly #extensions = new Map<string, Map<number, DescFile>>();
  readonly #messages = new Set<string>();
  readonly #encoded = new Map<DescFile, Uint8Array>();

  /** @param further files that no service needs, such as the details of errors. */
  constructor(services: readonly DescService[], further: readonly DescFile[] = []) {
    this.services = services.map((service) => service.typeName);
    for (const file of [...services.map((service) => service.file), ...further]) this.#addFile(file);
  }

  /** Names of all files. */
  get files(): Iterable<string> {
    return this.#files.keys();
  }

  /** By its name, such as `openshell.proto`. */
  file(name: string): DescFile | undefined {
    return this.#files.get(name);
  }

  /** The file that declares a full name: of a message, field, oneof, enum, enum value, service, method or extension. */
  fileOfSymbol(name: string): DescFile | undefined {
    return this.#symbols.get(name);
  }

  fileOfExtension(extended: string, number: number): DescFile | undefined {
    return this.#extensions.get(extended)?.get(number);
  }

  /** Ascending; undefined when there is no such message. */
  extensionNumbers(extended: string): readonly number[] | undefined {
    if (!this.#messages.has(extended)) return undefined;
    return [...(this.#extensions.get(extended)?.keys() ?? [])].toSorted((a, b) => a - b);
  }

  /** google.protobuf.FileDescriptorProto. */
  encoded(file: DescFile): Uint8Array {
    let bytes = this.#encoded.get(file);
    if (bytes === undefined) {
      bytes = toBinary(FileDescriptorProtoSchema, file.proto);
      this.#encoded.set(file, bytes);
    }
    return bytes;
  }

  #addFile(file: DescFile): void {
    const { proto } = file;
    if (this.#files.has(proto.name)) return;
    this.#files.set(proto.name, file);
    for (const dependency of file.dependencies) this.#addFile(dependency);
    for (const message of proto.messageType) this.#addMessage(file, proto.package, message);
    for (const type of proto.enumType) this.#addEnum(file, proto.package, type);
    for (const extension of proto.extension) this.#addExtension(file, proto.package, extension);
    for (const service of proto.service) {
      const name = this.#addName(file, proto.package, service.name);
      for (const method of service.method) this.#addName(file, name, method.name);
    }
  }

  #addName(file: DescFile, scope: string, name: string): string {
    const full = scope === "" ? name : `${scope}.${name}`;
    this.#symbols.set(full, file);
    return full;
  }

  #addMessage(file: DescFile, scope: string, message: DescriptorProto): void {
    const name = this.#addName(file, scope, message.name);
    this.#messages.add(name);
    for (const { name: member } of [...message.field, ...message.oneofDecl]) this.#addName(file, name, member);
    for (const type of message.enumType) this.#addEnum(file, name, type);
    for (const extension of message.extension) this.#addExtension(file, name, extension);
    for (const nested of message.nestedType) this.#addMessage(file, name, nested);
  }

  #addEnum(file: DescFile, scope: string, type: EnumDescriptorProto): void {
    this.#addName(file, scope, type.name);
    // Values are siblings of their enum (language guide, "Enum Value Options"; C++ scoping rules).
    for (const value of type.value) this.#addName(file, scope, value.name);
  }

  #addExtension(file: DescFile, scope: string, extension: FieldDescriptorProto): void {
    this.#addName(file, scope, extension.name);
    const extended = extension.extendee.replace(/^\./, "");
    const known = this.#extensions.get(extended) ?? new Map<number, DescFile>();
    this.#extensions.set(extended, known.set(extension.number, file));
  }
}

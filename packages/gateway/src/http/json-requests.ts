import { AsyncLocalStorage } from "node:async_hooks";
import { isUtf8 } from "node:buffer";
import { type DescMessage, fromJsonString, type JsonReadOptions } from "@bufbuild/protobuf";
import { notUtf8, undecodableJson } from "@openshell/api/json-decode-error.ts";

/**
 * How connect-node reads the JSON of requests. By itself it replaces bytes that are no UTF-8, and quotes what it cannot read in the error;
 * it asks its text decoder first, though, and errors of the API that this one throws reach the client as they are. JSON is read twice for
 * that: it is what people and the command line send, a small message a call.
 */
export class JsonRequests {
  readonly #schemas: ReadonlyMap<string, DescMessage>;
  readonly #options: Partial<JsonReadOptions>;
  readonly #current = new AsyncLocalStorage<DescMessage | undefined>();

  /** `schemas`: request messages by path. */
  constructor(schemas: ReadonlyMap<string, DescMessage>, options: Partial<JsonReadOptions>) {
    this.#schemas = schemas;
    this.#options = options;
  }

  /** Serves a request to `url`: what is decoded meanwhile is of its method. */
  during(url: string | undefined, serve: () => void): void {
    this.#current.run(this.#schemas.get(url?.split("?", 1)[0] ?? ""), serve);
  }

  /** @throws ApiError INVALID_ARGUMENT */
  decode(bytes: Uint8Array): string {
    if (!isUtf8(bytes)) throw notUtf8();
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("utf8");
    const schema = this.#current.getStore();
    if (schema === undefined) return text;
    try {
      fromJsonString(schema, text, this.#options);
    } catch {
      throw undecodableJson(schema, text);
    }
    return text;
  }
}

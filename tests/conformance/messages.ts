import { readFileSync } from "node:fs";
import { join } from "node:path";
import {
  createFileRegistry,
  type DescMessage,
  type DescService,
  type FileRegistry,
  fromBinary,
  type Message,
  toBinary,
} from "@bufbuild/protobuf";
import { type Any, FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { requiredProgram } from "../support/programs.ts";

/**
 * The messages of the conformance suite, as descriptors that were made from the suite's own .proto files. Shapes below
 * name the fields that are used here; what they mean is said in those files (connectrpc/conformance/v1).
 */

export interface Header {
  readonly name: string;
  readonly value: readonly string[];
}

export interface WireError {
  /** The numbers of Connect's `Code`. */
  readonly code: number;
  readonly message?: string;
  readonly details: readonly Any[];
}

export interface Credentials {
  readonly cert: Uint8Array;
  readonly key: Uint8Array;
}

export interface ServerCompatRequest extends Message {
  readonly useTls: boolean;
  readonly clientTlsCert: Uint8Array;
  readonly messageReceiveLimit: number;
  readonly serverCreds?: Credentials;
}

export interface UnaryDefinition {
  readonly responseHeaders: readonly Header[];
  readonly response:
    | { readonly case: "responseData"; readonly value: Uint8Array }
    | { readonly case: "error"; readonly value: WireError }
    | { readonly case: undefined };
  readonly responseTrailers: readonly Header[];
  readonly responseDelayMs: number;
}

export interface StreamDefinition {
  readonly responseHeaders: readonly Header[];
  readonly responseData: readonly Uint8Array[];
  readonly responseDelayMs: number;
  readonly error?: WireError;
  readonly responseTrailers: readonly Header[];
}

/** UnaryRequest, IdempotentUnaryRequest and ClientStreamRequest. */
export interface UnaryRequest extends Message {
  readonly responseDefinition?: UnaryDefinition;
}

/** ServerStreamRequest and BidiStreamRequest. */
export interface StreamRequest extends Message {
  readonly responseDefinition?: StreamDefinition;
  readonly fullDuplex?: boolean;
}

/** Every response of the service. */
export interface PayloadResponse extends Message {
  readonly payload?: Message;
}

/** Codec.CODEC_JSON */
export const CODEC_JSON = 2;
/** Compression.COMPRESSION_GZIP */
export const COMPRESSION_GZIP = 2;
/** StreamType.STREAM_TYPE_FULL_DUPLEX_BIDI_STREAM */
export const FULL_DUPLEX = 5;

export interface ClientCompatRequest extends Message {
  readonly testName: string;
  readonly codec: number;
  readonly compression: number;
  readonly host: string;
  readonly port: number;
  readonly serverTlsCert: Uint8Array;
  readonly clientTlsCreds?: Credentials;
  readonly messageReceiveLimit: number;
  readonly service?: string;
  readonly method?: string;
  readonly streamType: number;
  readonly requestHeaders: readonly Header[];
  readonly requestMessages: readonly Any[];
  readonly timeoutMs?: number;
  readonly requestDelayMs: number;
  readonly cancel?: {
    readonly cancelTiming:
      | { readonly case: "beforeCloseSend" }
      | { readonly case: "afterCloseSendMs" | "afterNumResponses"; readonly value: number }
      | { readonly case: undefined };
  };
}

export interface ClientResponseResult {
  readonly responseHeaders: readonly Header[];
  readonly responseTrailers: readonly Header[];
  readonly payloads: readonly Message[];
  readonly error?: WireError;
  readonly numUnsentRequests: number;
}

export interface Messages {
  readonly registry: FileRegistry;
  readonly service: DescService;
  /** A message of the suite by its short name. */
  message(name: string): DescMessage;
}

const PACKAGE = "connectrpc.conformance.v1";

export function loadMessages(): Messages {
  const file = join(requiredProgram("conformance"), "conformance.binpb");
  const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(file)));
  const service = registry.getService(`${PACKAGE}.ConformanceService`);
  if (service === undefined) throw new Error(`no ConformanceService in ${file}`);
  return {
    registry,
    service,
    message: (name) => {
      const found = registry.getMessage(`${PACKAGE}.${name}`);
      if (found === undefined) throw new Error(`no message ${name} in ${file}`);
      return found;
    },
  };
}

export function headersOf(list: Headers): Header[] {
  return [...list].map(([name, value]) => ({ name, value: [value] }));
}

export function appendHeaders(list: readonly Header[], to: Headers): void {
  for (const { name, value } of list) for (const each of value) to.append(name, each);
}

/** One message with its length before it, as the runner writes and reads them. */
export function frame(type: DescMessage, message: Message): Buffer {
  const bytes = toBinary(type, message);
  const head = Buffer.alloc(4);
  head.writeUInt32BE(bytes.length);
  return Buffer.concat([head, bytes]);
}

/** The messages of a stream of frames, until its end. */
export async function* unframe(type: DescMessage, input: AsyncIterable<Uint8Array>): AsyncGenerator<Message> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of input) {
    rest = Buffer.concat([rest, chunk]);
    while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32BE()) {
      const end = 4 + rest.readUInt32BE();
      yield fromBinary(type, rest.subarray(4, end));
      rest = rest.subarray(end);
    }
  }
  if (rest.length > 0) throw new Error("the runner's last message is cut off");
}

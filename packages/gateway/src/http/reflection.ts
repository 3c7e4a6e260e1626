import type { DescFile } from "@bufbuild/protobuf";
import { Code, type HandlerContext, type ServiceImpl } from "@connectrpc/connect";
import { resourceExhausted } from "@openshell/api/errors.ts";
import type {
  ServerReflection,
  ServerReflectionRequest,
} from "@openshell/api/generated/grpc/reflection/v1/reflection_pb.js";
import type {
  ServerReflection as ServerReflectionAlpha,
  ServerReflectionRequest as ServerReflectionRequestAlpha,
} from "@openshell/api/generated/grpc/reflection/v1alpha/reflection_pb.js";
import type { Clock } from "@openshell/base";
import { callerKey } from "../auth/caller.ts";
import { DONE } from "../sessions/reader.ts";
import { HttpLimits } from "./limits.ts";
import { Places } from "./places.ts";
import type { SchemaIndex } from "./schema-index.ts";

export interface ReflectionOptions {
  /** Made at the first question: most gateways are never asked. */
  readonly schema: () => SchemaIndex;
  readonly clock: Clock;
  /** Aborted when the gateway ends its streams. */
  readonly stopping: AbortSignal;
}

/** Both versions of the standard reflection service; they differ in their package alone. */
export interface Reflection {
  readonly v1: ServiceImpl<typeof ServerReflection>;
  readonly v1alpha: ServiceImpl<typeof ServerReflectionAlpha>;
}

type Request = ServerReflectionRequest | ServerReflectionRequestAlpha;
/** The content of an answer, by the field's name in the protocol. */
type Answer =
  | { readonly case: "fileDescriptorResponse"; readonly value: { readonly fileDescriptorProto: Uint8Array[] } }
  | {
      readonly case: "allExtensionNumbersResponse";
      readonly value: { readonly baseTypeName: string; readonly extensionNumber: number[] };
    }
  | { readonly case: "listServicesResponse"; readonly value: { readonly service: { readonly name: string }[] } }
  | { readonly case: "errorResponse"; readonly value: { readonly errorCode: number; readonly errorMessage: string } };

/** gRPC server reflection over a schema. */
export function reflection(options: ReflectionOptions): Reflection {
  // Of both versions together.
  const places = new Places({
    all: HttpLimits.reflectionStreams,
    strangers: HttpLimits.strangerReflectionStreams,
    what: "reflection streams are open",
    next: "Try again when others have ended",
  });
  return {
    v1: {
      async *serverReflectionInfo(requests, context) {
        for await (const [question, messageResponse] of answers(requests, options, places, context)) {
          yield { ...repeated(question), messageResponse };
        }
      },
    },
    v1alpha: {
      async *serverReflectionInfo(requests, context) {
        for await (const [question, messageResponse] of answers(requests, options, places, context)) {
          yield { ...repeated(question), messageResponse };
        }
      },
    },
  };
}

/** Each question with its answer, one after the other, within the limits of one stream. */
async function* answers<R extends Request>(
  requests: AsyncIterable<R>,
  { schema, clock, stopping }: ReflectionOptions,
  places: Places,
  { signal, values }: Pick<HandlerContext, "signal" | "values">,
): AsyncGenerator<[R, Answer], void, void> {
  using _place = places.take(values.get(callerKey) === undefined);
  const ending = new AbortController();
  const { promise: ended, resolve, reject } = Promise.withResolvers<undefined>();
  ended.catch(() => {});
  const onAbort = (): void => reject((signal.aborted ? signal : stopping).reason);
  for (const one of [signal, stopping]) {
    if (one.aborted) onAbort();
    one.addEventListener("abort", onAbort, { signal: ending.signal });
  }
  clock.sleep(HttpLimits.reflectionStreamMs, { signal: ending.signal, unref: true }).then(
    () => resolve(undefined),
    () => {},
  );
  const sent = new Set<DescFile>();
  const iterator = requests[Symbol.asyncIterator]();
  try {
    for (let count = 0; ; count += 1) {
      const next = await Promise.race([iterator.next(), ended]);
      if (next === undefined || next.done) return;
      if (count >= HttpLimits.reflectionRequests) {
        throw resourceExhausted(`more than ${HttpLimits.reflectionRequests} questions in one reflection stream`, {
          next: "Ask the rest in another stream",
        });
      }
      yield [next.value, answerTo(next.value, schema(), sent)];
    }
  } finally {
    ending.abort(DONE);
  }
}

/** What an answer says of its question. One of senseless length is not sent back. */
function repeated<R extends Request>(
  question: R,
): { readonly validHost: string; readonly originalRequest: R } | object {
  return longest(question) > HttpLimits.reflectionNameCharacters
    ? {}
    : { validHost: question.host, originalRequest: question };
}

/** What is asked for by name; nothing for a question without one. */
function nameIn({ messageRequest: { value } }: Request): string {
  return typeof value === "object" ? value.containingType : (value ?? "");
}

function longest(question: Request): number {
  return Math.max(question.host.length, nameIn(question).length);
}

/** `sent`: the files that this stream has had; they are not imported into it again. */
function answerTo(request: Request, schema: SchemaIndex, sent: Set<DescFile>): Answer {
  const { messageRequest: question } = request;
  const asked = nameIn(request);
  if (longest(request) > HttpLimits.reflectionNameCharacters) {
    return refusal(Code.InvalidArgument, `a name of ${longest(request)} characters`);
  }
  switch (question.case) {
    case "listServices":
      return { case: "listServicesResponse", value: { service: schema.services.map((name) => ({ name })) } };
    case "fileByFilename":
      return files(schema.file(asked), `file ${asked}`, schema, sent);
    case "fileContainingSymbol":
      return files(schema.fileOfSymbol(asked), `symbol ${asked}`, schema, sent);
    case "fileContainingExtension": {
      const { extensionNumber } = question.value;
      const what = `extension ${extensionNumber} of ${asked}`;
      return files(schema.fileOfExtension(asked, extensionNumber), what, schema, sent);
    }
    case "allExtensionNumbersOfType": {
      const numbers = schema.extensionNumbers(asked);
      if (numbers === undefined) return refusal(Code.NotFound, `no message ${asked}`);
      const value = { baseTypeName: asked, extensionNumber: [...numbers] };
      return { case: "allExtensionNumbersResponse", value };
    }
    case undefined:
      return refusal(Code.InvalidArgument, "the request asks for nothing that this server knows");
  }
}

/** A file with those of its imports that were not sent yet, each before what it imports. */
function files(file: DescFile | undefined, what: string, schema: SchemaIndex, sent: Set<DescFile>): Answer {
  if (file === undefined) return refusal(Code.NotFound, `no ${what}`);
  const importsFirst: Uint8Array[] = [];
  const add = (one: DescFile): void => {
    sent.add(one);
    for (const dependency of one.dependencies) if (!sent.has(dependency)) add(dependency);
    importsFirst.push(schema.encoded(one));
  };
  add(file);
  return { case: "fileDescriptorResponse", value: { fileDescriptorProto: importsFirst.toReversed() } };
}

function refusal(code: Code, errorMessage: string): Answer {
  return { case: "errorResponse", value: { errorCode: code, errorMessage } };
}

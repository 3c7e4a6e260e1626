import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import type { Interceptor } from "@connectrpc/connect";

/** A message in its binary form. `$typeName` lets it pass where Connect checks what a handler gave. */
class EncodedMessage {
  readonly $typeName: string;
  readonly schema: DescMessage;
  readonly bytes: Uint8Array;

  constructor(schema: DescMessage, bytes: Uint8Array) {
    this.$typeName = schema.typeName;
    this.schema = schema;
    this.bytes = bytes;
  }
}

/**
 * A message that is encoded already: a handler gives it in place of one that it would have to build. The lane sends the
 * bytes as they are. Nothing can be read from it; handlers served by other means need {@link decodeEncoded}.
 */
export function encodedMessage<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc> {
  return new EncodedMessage(schema, bytes) as unknown as MessageShape<Desc>;
}

/** The bytes of an encoded message; undefined for any other. */
export function encodedBytes(message: unknown): Uint8Array | undefined {
  return message instanceof EncodedMessage ? message.bytes : undefined;
}

function decoded<Message>(message: Message): Message {
  return message instanceof EncodedMessage ? (fromBinary(message.schema, message.bytes) as Message) : message;
}

/** A server interceptor that turns encoded messages into ordinary ones, for protocols and codecs that need them. */
export const decodeEncoded: Interceptor = (next) => async (request) => {
  const response = await next(request);
  if (!response.stream) return { ...response, message: decoded(response.message) };
  return { ...response, message: decodeEach(response.message) };
};

async function* decodeEach<Message>(messages: AsyncIterable<Message>): AsyncGenerator<Message, void, void> {
  for await (const message of messages) yield decoded(message);
}

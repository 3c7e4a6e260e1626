import { encodeFrame, type Frame, FrameReader } from "@openshell/rpc/wire/frame.ts";
import type { Endpoint } from "./endpoint.ts";
import { MAX_FRAME_BYTES } from "./limits.ts";
import { RpcError } from "./rpc-error.ts";
import { errorFromJson, errorFromObject, type Json, openRequest, responseOf } from "./unary.ts";
import { connectionError } from "./unreachable.ts";

/** Flag of the Connect protocol: the last message, with status and trailers. */
const END_STREAM = 0x02;

/** A server-streaming call in the Connect protocol with JSON. Ends when the gateway ends it; throws {@link RpcError}, also when `signal` aborts. */
export async function* streamJson(
  endpoint: Endpoint,
  method: string,
  message: Json,
  signal?: AbortSignal,
): AsyncGenerator<Json, void, void> {
  const request = openRequest(endpoint, method, {
    "content-type": "application/connect+json",
    "connect-protocol-version": "1",
  });
  const abort = (): void => void request.destroy(new RpcError("canceled", "interrupted"));
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  try {
    request.end(encodeFrame(Buffer.from(JSON.stringify(message))));
    const response = await responseOf(request, endpoint);
    // A broken connection is told by the response's own iterator; a listener keeps it from being thrown as well.
    request.on("error", () => {});
    if (response.statusCode !== 200) {
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk as Buffer);
      throw errorFromJson(Buffer.concat(chunks).toString("utf8"), response.statusCode ?? 0);
    }
    const reader = new FrameReader(MAX_FRAME_BYTES, END_STREAM);
    for await (const chunk of response) {
      const frames: Frame[] = [];
      reader.push(chunk as Buffer, frames);
      for (const frame of frames) {
        const value = JSON.parse(Buffer.from(frame.data).toString("utf8")) as Json;
        if ((frame.flags & END_STREAM) !== 0) {
          if (value["error"] !== undefined) throw errorFromObject(value["error"] as Json);
          return;
        }
        yield value;
      }
    }
    throw new RpcError("unavailable", "the connection to the gateway was lost before the call ended");
  } catch (error) {
    throw signal?.aborted ? new RpcError("canceled", "interrupted") : connectionError(error, endpoint);
  } finally {
    signal?.removeEventListener("abort", abort);
    request.destroy();
  }
}

import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { ApiError, internal } from "./errors.ts";

/** How Connect begins the text of an INTERNAL error for a message that does not decode: the fault of whoever sent it. */
const PARSE_FAILURE = /^parse binary: /;

/** What the boundary needs from its server. */
export interface ErrorBoundaryOptions {
  /** Translates an error of the server's own kind; undefined when it is not one. */
  readonly translate?: (error: unknown) => ApiError | undefined;
  /** Told of every error that clients see as INTERNAL, with the original; the place to log it. Must not throw. */
  readonly onInternal: (error: unknown, method: string) => void;
}

/**
 * A server interceptor that lets only ApiErrors and errors of the RPC library itself through. Without it the library would send the text of any
 * thrown error to the client. Errors raised while a response stream is being read are covered too.
 */
export function errorBoundary(options: ErrorBoundaryOptions): Interceptor {
  return (next) => async (request) => {
    const method = request.method.name;
    try {
      const response = await next(request);
      if (!response.stream) return response;
      return { ...response, message: guard(response.message, options, method) };
    } catch (error) {
      throw toClientError(error, options, method);
    }
  };
}

async function* guard<T>(messages: AsyncIterable<T>, options: ErrorBoundaryOptions, method: string): AsyncGenerator<T> {
  try {
    yield* messages;
  } catch (error) {
    throw toClientError(error, options, method);
  }
}

/** The error that a client may see for `error`. */
export function toClientError(error: unknown, options: ErrorBoundaryOptions, method: string): ConnectError {
  if (error instanceof ApiError) return error;
  const translated = options.translate?.(error);
  if (translated !== undefined) return translated;
  if (error instanceof ConnectError && PARSE_FAILURE.test(error.rawMessage)) {
    return new ApiError(Code.InvalidArgument, "a message of the request cannot be decoded", {
      next: "Use a client of the same release of the API",
      reason: "INVALID_ARGUMENT",
      cause: error,
    });
  }
  if (error instanceof ConnectError && error.code !== Code.Unknown && error.code !== Code.Internal) return error;
  if (error instanceof Error && error.name === "AbortError")
    return new ApiError(Code.Canceled, "the call was cancelled");
  options.onInternal(error, method);
  return internal(error);
}

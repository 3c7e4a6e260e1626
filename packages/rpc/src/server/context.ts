import type { DescMethod, DescService } from "@bufbuild/protobuf";
import { Code, ConnectError, type ContextValues, createContextValues, type HandlerContext } from "@connectrpc/connect";
import { toHeaders } from "../wire/metadata.ts";
import type { Fields } from "../wire/status.ts";

/**
 * What a handler sees of its call. Everything that costs (Headers, the abort signal) is made when it is first asked for:
 * most unary handlers ask for nothing.
 */
export class CallContext implements HandlerContext {
  readonly method: DescMethod;
  readonly requestMethod = "POST";
  readonly protocolName = "grpc";
  readonly #fields: Fields;
  readonly #makeValues: (() => ContextValues) | undefined;
  readonly #shutdown: AbortSignal | undefined;
  readonly #deadline: number | undefined;
  #requestHeader: Headers | undefined;
  #responseHeader: Headers | undefined;
  #responseTrailer: Headers | undefined;
  #values: ContextValues | undefined;
  #controller: AbortController | undefined;
  #ended: (() => unknown) | undefined;

  constructor(
    method: DescMethod,
    fields: Fields,
    timeoutMs: number | undefined,
    options: { readonly values: (() => ContextValues) | undefined; readonly shutdown: AbortSignal | undefined },
  ) {
    this.method = method;
    this.#fields = fields;
    this.#makeValues = options.values;
    this.#shutdown = options.shutdown;
    this.#deadline = timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
  }

  get service(): DescService {
    return this.method.parent;
  }

  get url(): string {
    return `${this.#fields[":scheme"] ?? "http"}://${this.#fields[":authority"] ?? "localhost"}${this.#fields[":path"]}`;
  }

  get requestHeader(): Headers {
    this.#requestHeader ??= toHeaders(this.#fields);
    return this.#requestHeader;
  }

  get responseHeader(): Headers {
    this.#responseHeader ??= new Headers();
    return this.#responseHeader;
  }

  get responseTrailer(): Headers {
    this.#responseTrailer ??= new Headers();
    return this.#responseTrailer;
  }

  /** Response metadata if there is any. */
  get metadata(): { readonly header: Headers | undefined; readonly trailer: Headers | undefined } {
    return { header: this.#responseHeader, trailer: this.#responseTrailer };
  }

  get values(): ContextValues {
    this.#values ??= this.#makeValues?.() ?? createContextValues();
    return this.#values;
  }

  timeoutMs = (): number | undefined => {
    return this.#deadline === undefined ? undefined : this.#deadline - performance.now();
  };

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#ended !== undefined) this.#controller.abort(this.#ended());
      else if (this.#shutdown?.aborted) this.#onShutdown();
      else this.#shutdown?.addEventListener("abort", this.#onShutdown, { once: true });
    }
    return this.#controller.signal;
  }

  /** The call is over: its signal aborts, whatever the outcome was. */
  end(reason: () => unknown): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    if (this.#controller === undefined) return;
    this.#shutdown?.removeEventListener("abort", this.#onShutdown);
    this.#controller.abort(reason());
  }

  /** The same call as an interceptor changed it. */
  with(change: Pick<HandlerContext, "requestHeader" | "signal" | "values">): HandlerContext {
    const { service, method, requestMethod, protocolName, url, timeoutMs, responseHeader, responseTrailer } = this;
    return { service, method, requestMethod, protocolName, url, timeoutMs, responseHeader, responseTrailer, ...change };
  }

  #onShutdown = (): void => {
    this.#controller?.abort(
      ConnectError.from(this.#shutdown?.reason ?? new ConnectError("the server is stopping", Code.Unavailable)),
    );
  };
}

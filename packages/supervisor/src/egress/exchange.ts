import type { SecureContext } from "node:tls";
import { RuntimeError } from "@openshell/base";
import { ResponseScrubber, type UsedCredential } from "@openshell/credentials";
import type { AddressBytes } from "./address.ts";
import type { Channel } from "./channel.ts";
import { type Authority, formatAuthority } from "./host-name.ts";
import { type Body, openBody } from "./http1/body.ts";
import type { Fields } from "./http1/fields.ts";
import { HttpParseError, parseResponseHead, type RequestHead, type ResponseHead } from "./http1/head.ts";
import { readHead } from "./http1/read-head.ts";
import { BodyWriter, copyBody, endToEnd, formatHead, type OutgoingFraming } from "./http1/write.ts";
import {
  BODY_IDLE_MS,
  MAX_INTERIM_RESPONSES,
  RESPONSE_HEAD_BYTES,
  RESPONSE_HEAD_MS,
  SCRUB_WHOLE_BYTES,
  UPSTREAM_IDLE_MS,
} from "./limits.ts";
import { decodeBody, decodersFor, guardBody, scrubBody, scrubFields } from "./scrub.ts";
import type { Upstream, UpstreamPool } from "./upstream-pool.ts";

/** One request that was allowed, ready to be sent. */
export interface Outgoing {
  readonly head: RequestHead;
  /** After credential rewriting. */
  readonly fields: Fields;
  readonly path: string;
  readonly query: string | undefined;
  readonly destination: Authority;
  readonly addresses: readonly AddressBytes[];
  readonly tls: SecureContext | undefined;
  /** Credentials in the head; the response is searched for them. */
  readonly used: readonly UsedCredential[];
  /** Refuses placeholders in the body. */
  readonly scanBody: boolean;
  readonly credential: string;
  /** Adds Via, as the explicit proxy does. */
  readonly via: boolean;
}

export interface ExchangeHooks {
  /** The upstream connection in use, to be cut when the exchange has to end. */
  onUpstream(upstream: Upstream | undefined): void;
  /** A final response head came; told once, before it is passed on. */
  onResponse(status: number): void;
  /** Credentials were found in the response and replaced. */
  onLeak(): void;
  /** The request body holds a placeholder; the request was broken off. */
  onMarker(): void;
}

/** `keep`: both messages are complete and the client may send another. `close`: complete, the connection ends in order. `linger`: the same, but the client is still sending. `broken`: the client must see a break. `unanswered`: nothing was sent to the client. */
export type ExchangeResult =
  | { readonly kind: "keep" | "close" | "linger" | "broken" }
  /** The client's own body cannot be passed on; nothing was sent to the client. */
  | { readonly kind: "rejected"; readonly error: unknown }
  | { readonly kind: "unanswered"; readonly error: unknown; readonly bodyDone: boolean };

/** What may be sent twice (RFC 9110 §9.2.2), when there is no body to lose. */
const REPEATABLE = new Set(["GET", "HEAD", "OPTIONS", "PUT", "DELETE"]);
/** Servers close idle connections after 5 s (Node) or more; a request that cannot be repeated uses only fresher ones. */
const FRESH_MS = 2_000;

const SKIP_REQUEST: ReadonlySet<string> = new Set(["host", "content-length"]);
const SKIP_LENGTH: ReadonlySet<string> = new Set(["content-length"]);
const SKIP_DECODED: ReadonlySet<string> = new Set([
  "content-length",
  "content-encoding",
  "content-md5",
  "digest",
  "repr-digest",
  "content-digest",
]);

/** Sends one request upstream and its response back, both streaming, with back-pressure in each direction. */
export async function exchange(
  pool: UpstreamPool,
  client: Channel,
  outgoing: Outgoing,
  hooks: ExchangeHooks,
): Promise<ExchangeResult> {
  const { head } = outgoing;
  const plain = openBody(client, head.framing);
  const body = outgoing.scanBody && head.framing.kind !== "none" ? guardBody(plain, hooks.onMarker) : plain;
  const repeatable = head.framing.kind === "none" && REPEATABLE.has(head.method);
  let attempt = 0;
  for (;;) {
    let upstream: Upstream;
    try {
      // A second attempt never takes another connection that may be just as stale.
      const got = pool.acquire(
        {
          host: outgoing.destination.host,
          port: outgoing.destination.port,
          addresses: outgoing.addresses,
          tls: outgoing.tls,
          credential: outgoing.credential,
          wanted: () => !client.closed,
        },
        attempt > 0 ? -1 : repeatable ? UPSTREAM_IDLE_MS : FRESH_MS,
      );
      upstream = got instanceof Promise ? await got : got;
    } catch (error) {
      return { kind: "unanswered", error, bodyDone: body.done };
    }
    hooks.onUpstream(upstream);
    try {
      if (client.closed) {
        upstream.channel.destroy(true);
        return { kind: "broken" };
      }
      const result = await attemptOn(upstream, client, outgoing, body, hooks);
      if (result.kind === "unanswered" && upstream.reused && repeatable && attempt === 0 && isStale(result.error)) {
        attempt += 1;
        continue;
      }
      if (result.kind === "reusable") {
        pool.release(upstream);
        return { kind: result.close ? "close" : "keep" };
      }
      upstream.channel.destroy(result.kind === "broken" || result.kind === "unanswered");
      return result;
    } finally {
      hooks.onUpstream(undefined);
    }
  }
}

type AttemptResult = ExchangeResult | { readonly kind: "reusable"; readonly close: boolean };

function isStale(error: unknown): boolean {
  return error instanceof RuntimeError && (error.code === "connection_broken" || error.code === "connection_closed");
}

async function attemptOn(
  upstream: Upstream,
  client: Channel,
  outgoing: Outgoing,
  body: Body,
  hooks: ExchangeHooks,
): Promise<AttemptResult> {
  const { head } = outgoing;
  const { channel } = upstream;
  if (channel.buffered > 0) {
    return unanswered(new HttpParseError("unsolicited", "The server answered before it was asked"), body);
  }
  let sending: Promise<unknown> | undefined;
  let bodySent = true;
  /** The client's side of the request broke: nothing to answer. */
  let clientFailure: unknown;
  try {
    if (head.framing.kind === "none") {
      const wait = channel.write(requestText(outgoing), BODY_IDLE_MS, "latin1");
      if (wait !== undefined) await wait;
    } else {
      bodySent = false;
      channel.cork();
      void channel.write(requestText(outgoing), BODY_IDLE_MS, "latin1")?.catch(() => undefined);
      const framing = head.framing.kind === "chunked" ? "chunked" : "length";
      sending = copyBody(
        clientBody(body, (error) => {
          clientFailure = error;
          channel.destroy(true);
        }),
        channel,
        new BodyWriter(channel, framing, BODY_IDLE_MS),
        BODY_IDLE_MS,
      ).then(
        () => {
          bodySent = true;
        },
        // A server that stopped reading may still answer; its answer decides.
        () => undefined,
      );
      channel.uncork();
    }
    const scrubber = outgoing.used.length === 0 ? undefined : new ResponseScrubber(outgoing.used);
    const response = await readResponse(channel, client, head, scrubber);
    hooks.onResponse(response.status);
    const result = await respond(channel, client, head, response, scrubber, () => bodySent, hooks);
    if (!bodySent) return { kind: result === "broken" ? "broken" : "linger" };
    if (result === "broken") return { kind: "broken" };
    if (response.keepAlive && !channel.ended && channel.buffered === 0)
      return { kind: "reusable", close: result === "close" };
    return { kind: result };
  } catch (error) {
    if (client.closed) return { kind: "broken" };
    if (clientFailure !== undefined) return { kind: "rejected", error: clientFailure };
    return unanswered(error, body);
  } finally {
    // Never left behind: the copy ends with the connection at the latest.
    void sending;
  }
}

function unanswered(error: unknown, body: Body): AttemptResult {
  return { kind: "unanswered", error, bodyDone: body.done };
}

/** The client's body, telling apart its failures from those of the upstream connection. */
function clientBody(body: Body, onFailure: (error: unknown) => void): Body {
  return {
    get trailers() {
      return body.trailers;
    },
    get done() {
      return body.done;
    },
    next(limitMs) {
      try {
        const next = body.next(limitMs);
        if (!(next instanceof Promise)) return next;
        return next.catch((error: unknown) => {
          onFailure(error);
          throw error;
        });
      } catch (error) {
        onFailure(error);
        throw error;
      }
    },
  };
}

function requestText(outgoing: Outgoing): string {
  const { head, path, query, destination } = outgoing;
  const fields = endToEnd(outgoing.fields, head.connection, SKIP_REQUEST);
  if (outgoing.used.length > 0) {
    // The response is searched for what was injected, so it has to come uncompressed.
    fields.set("Accept-Encoding", "identity");
  }
  if (head.minor === 0) fields.remove("expect");
  if (outgoing.via && !fields.has("via")) fields.add("Via", "1.1 openshell-sandbox");
  if (head.framing.kind === "length") fields.add("Content-Length", String(head.framing.length), "content-length");
  else if (head.framing.kind === "chunked") fields.add("Transfer-Encoding", "chunked", "transfer-encoding");
  const host = formatAuthority(destination, outgoing.tls === undefined ? 80 : 443);
  return formatHead(
    `${head.method} ${path}${query === undefined ? "" : `?${query}`} HTTP/1.1\r\nHost: ${host}`,
    fields,
  );
}

/** The final response head; interim ones are passed on before it. */
async function readResponse(
  upstream: Channel,
  client: Channel,
  head: RequestHead,
  scrubber: ResponseScrubber | undefined,
): Promise<ResponseHead> {
  for (let interim = 0; ; interim += 1) {
    const bytes = await readHead(upstream, RESPONSE_HEAD_BYTES, RESPONSE_HEAD_MS, RESPONSE_HEAD_MS);
    if (bytes === undefined)
      throw new RuntimeError("connection_closed", "The server closed the connection without an answer");
    const response = parseResponseHead(bytes, head.method);
    if (response.status === 101)
      throw new HttpParseError("unsolicited", "The server switched protocols without being asked");
    if (response.status >= 200) return response;
    if (interim >= MAX_INTERIM_RESPONSES)
      throw new HttpParseError("interim", "The server sent too many interim responses");
    // HTTP/1.0 knows no interim responses.
    if (head.minor === 0) continue;
    const fields = endToEnd(response.fields, response.connection);
    fields.remove("content-length");
    if (scrubber !== undefined) scrubFields(fields, scrubber);
    const reason = scrubber?.scrubText(response.reason) ?? response.reason;
    const wait = client.write(formatHead(`HTTP/1.1 ${response.status} ${reason}`, fields), BODY_IDLE_MS, "latin1");
    if (wait !== undefined) await wait;
  }
}

async function respond(
  upstream: Channel,
  client: Channel,
  head: RequestHead,
  response: ResponseHead,
  scrubber: ResponseScrubber | undefined,
  bodySent: () => boolean,
  hooks: ExchangeHooks,
): Promise<"keep" | "close" | "broken"> {
  let body = openBody(upstream, response.framing);
  let fields = endToEnd(response.fields, response.connection);
  let { reason } = response;
  let framing: OutgoingFraming = response.framing.kind === "until_close" ? "chunked" : response.framing.kind;
  let length = response.framing.kind === "length" ? response.framing.length : undefined;

  if (scrubber !== undefined && framing !== "none") {
    const decoders = decodersFor(response.fields.getAll("content-encoding"));
    if (decoders === undefined || (decoders.length > 0 && response.status === 206)) {
      throw new RuntimeError(
        "response_uninspectable",
        "The response to a credentialed request is coded in a way that cannot be searched",
      );
    }
    if (decoders.length > 0) {
      body = decodeBody(body, decoders, BODY_IDLE_MS);
      fields = endToEnd(fields, [], SKIP_DECODED);
    }
    body = scrubBody(body, scrubber);
    if (length !== undefined && length <= SCRUB_WHOLE_BYTES && decoders.length === 0) {
      const whole = await readWhole(body);
      length = whole.length;
      body = bufferBody(whole);
    } else framing = "chunked";
  }
  if (scrubber !== undefined) {
    scrubFields(fields, scrubber);
    reason = scrubber.scrubText(reason);
    if (scrubber.replacements > 0) hooks.onLeak();
  }

  let close = !head.keepAlive || !bodySent();
  if (framing === "chunked" && head.minor === 0) {
    framing = "until_close";
    close = true;
  }
  if (framing !== "none") {
    fields = endToEnd(fields, [], SKIP_LENGTH);
    if (framing === "length") fields.add("Content-Length", String(length), "content-length");
    else if (framing === "chunked") fields.add("Transfer-Encoding", "chunked", "transfer-encoding");
  } else if (response.status === 204 || fields.getAll("content-length").length > 1) {
    const [first] = fields.getAll("content-length");
    fields.remove("content-length");
    if (response.status !== 204) fields.add("Content-Length", first!);
  }
  if (close) fields.add("Connection", "close", "connection");
  else if (head.minor === 0) fields.add("Connection", "keep-alive", "connection");

  const foundBefore = scrubber?.replacements ?? 0;
  try {
    client.cork();
    const wait = client.write(formatHead(`HTTP/1.1 ${response.status} ${reason}`, fields), BODY_IDLE_MS, "latin1");
    void wait?.catch(() => undefined);
    const copying =
      framing === "none"
        ? undefined
        : copyBody(body, client, new BodyWriter(client, framing, BODY_IDLE_MS), BODY_IDLE_MS);
    client.uncork();
    if (copying !== undefined) await copying;
    if (wait !== undefined) await wait;
  } catch {
    // The head is out: only a break tells the client that the rest is missing.
    return "broken";
  } finally {
    if (scrubber !== undefined && foundBefore === 0 && scrubber.replacements > 0) hooks.onLeak();
  }
  return close ? "close" : "keep";
}

async function readWhole(body: Body): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for (;;) {
    const piece = await body.next(BODY_IDLE_MS);
    if (piece === null) return Buffer.concat(pieces);
    pieces.push(piece);
  }
}

function bufferBody(bytes: Buffer): Body {
  let left: Buffer | null = bytes;
  return {
    trailers: undefined,
    get done() {
      return left === null;
    },
    next() {
      const piece = left;
      left = null;
      return piece;
    },
  };
}

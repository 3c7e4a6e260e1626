import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { base64Decode, base64Encode } from "@bufbuild/protobuf/wire";
import { canonicalBytes } from "./canonical.ts";
import { invalidField } from "./errors.ts";
import { equalBytes, type Mac, macOf } from "./mac.ts";

/** Page size when a request asks for none. */
export const DEFAULT_PAGE_SIZE = 100;
/** Larger wishes are lowered to this. */
export const MAX_PAGE_SIZE = 1000;
/** Characters of a page token. Clients give up after 1 MiB of tokens in one traversal, so tokens stay short. */
export const MAX_PAGE_TOKEN = 2048;

const VERSION = 1;
const TAG_BYTES = 32;

/**
 * Rows to return for a requested `page_size`: 0 is the default, large wishes are lowered.
 *
 * @throws ApiError INVALID_ARGUMENT when negative.
 */
export function pageSize(requested: number, field = "page_size"): number {
  if (requested < 0) throw invalidField(field, "must not be negative");
  return requested === 0 ? DEFAULT_PAGE_SIZE : Math.min(requested, MAX_PAGE_SIZE);
}

/** The list request that a token belongs to. */
export interface PageTokenContext<Desc extends DescMessage> {
  readonly mac: Mac;
  /** Method name; a token of one list is refused by another. */
  readonly method: string;
  readonly schema: Desc;
  /** The request. All its fields but `page_size` and `page_token` are bound to the token. */
  readonly request: MessageShape<Desc>;
}

/** Where the next page starts: the sort key of the last row returned, as strings. Its meaning belongs to the list. */
export type PageCursor = readonly string[];

/**
 * An opaque token for the page after `cursor`. Layout: base64url of version, HMAC tag (32 bytes), cursor as JSON. The tag covers the method and
 * the rest of the request, so a token works only for the traversal that made it. Cursors are readable by the caller: put nothing secret in them.
 */
export async function encodePageToken<Desc extends DescMessage>(
  context: PageTokenContext<Desc>,
  cursor: PageCursor,
): Promise<string> {
  const payload = new TextEncoder().encode(JSON.stringify(cursor));
  const token = new Uint8Array(1 + TAG_BYTES + payload.length);
  token[0] = VERSION;
  token.set(await tagOf(context, payload), 1);
  token.set(payload, 1 + TAG_BYTES);
  const text = base64Encode(token, "url");
  if (text.length > MAX_PAGE_TOKEN) throw new RangeError(`page cursor of ${context.method} is too long`);
  return text;
}

/**
 * The cursor of `request.page_token`, or undefined for the first page. `length` is the number of strings that this list's cursors have.
 *
 * @throws ApiError INVALID_ARGUMENT for a token that is malformed, altered, or of another request.
 */
export async function decodePageToken<Desc extends DescMessage>(
  context: PageTokenContext<Desc>,
  token: string,
  length: number,
): Promise<PageCursor | undefined> {
  if (token === "") return undefined;
  const bytes = decodeBase64Url(token);
  if (bytes === undefined || bytes[0] !== VERSION || bytes.length <= 1 + TAG_BYTES) throw refused();
  const payload = bytes.subarray(1 + TAG_BYTES);
  if (!equalBytes(bytes.subarray(1, 1 + TAG_BYTES), await tagOf(context, payload))) throw refused();
  const cursor: unknown = JSON.parse(new TextDecoder().decode(payload));
  if (!Array.isArray(cursor) || cursor.length !== length || cursor.some((part) => typeof part !== "string"))
    throw refused();
  return cursor as string[];
}

async function tagOf<Desc extends DescMessage>(
  context: PageTokenContext<Desc>,
  payload: Uint8Array,
): Promise<Uint8Array> {
  const request = canonicalBytes(context.schema, context.request, ["page_size", "page_token"]);
  const tag = await macOf(context.mac, "openshell page token v1", [context.method, request, payload]);
  return tag.subarray(0, TAG_BYTES);
}

function decodeBase64Url(text: string): Uint8Array | undefined {
  if (text.length > MAX_PAGE_TOKEN || !/^[A-Za-z0-9_-]+$/.test(text)) return undefined;
  try {
    return base64Decode(text);
  } catch {
    return undefined;
  }
}

function refused(): Error {
  return invalidField(
    "page_token",
    "is not valid for this request; repeat the other fields unchanged, or start again without a token",
  );
}

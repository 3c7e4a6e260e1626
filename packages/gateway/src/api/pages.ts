import { type DescMessage, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { encodePageToken, type PageCursor, type PageTokenContext } from "@openshell/api/page-token.ts";

/** Encoded bytes of one page: common clients refuse messages above 4 MiB. */
export const MAX_PAGE_BYTES = 3 * 1024 * 1024;

export interface PageOptions<Row, Item extends DescMessage, Request extends DescMessage> {
  /** One row more than asked for, when there is one: that is how the end is known. */
  readonly rows: readonly Row[];
  /** Items at most. */
  readonly limit: number;
  readonly schema: Item;
  readonly message: (row: Row) => MessageShape<Item>;
  readonly cursor: (row: Row) => PageCursor;
  readonly token: PageTokenContext<Request>;
}

/** The items of one page, at least one when there are rows, and the token of the next page (empty at the end). */
export async function pageOf<Row, Item extends DescMessage, Request extends DescMessage>(
  options: PageOptions<Row, Item, Request>,
): Promise<{ readonly items: MessageShape<Item>[]; readonly nextPageToken: string }> {
  const { schema, message } = options;
  return await cut(options, message, (item) => toBinary(schema, item).length);
}

/** As {@link pageOf}, with items that are encoded already. */
export async function encodedPageOf<Row, Request extends DescMessage>(
  options: CutOptions<Row, Request> & { readonly encoded: (row: Row) => Uint8Array },
): Promise<{ readonly items: readonly Uint8Array[]; readonly nextPageToken: string }> {
  return await cut(options, options.encoded, (item) => item.length);
}

type CutOptions<Row, Request extends DescMessage> = Pick<
  PageOptions<Row, DescMessage, Request>,
  "rows" | "limit" | "cursor" | "token"
>;

async function cut<Row, Item, Request extends DescMessage>(
  { rows, limit, cursor, token }: CutOptions<Row, Request>,
  make: (row: Row) => Item,
  bytesOf: (item: Item) => number,
): Promise<{ readonly items: Item[]; readonly nextPageToken: string }> {
  const items: Item[] = [];
  let bytes = 0;
  for (const row of rows) {
    if (items.length === limit) break;
    const item = make(row);
    bytes += bytesOf(item);
    if (bytes > MAX_PAGE_BYTES && items.length > 0) break;
    items.push(item);
  }
  const last = rows[items.length - 1];
  const more = items.length < rows.length && last !== undefined;
  return { items, nextPageToken: more ? await encodePageToken(token, cursor(last)) : "" };
}

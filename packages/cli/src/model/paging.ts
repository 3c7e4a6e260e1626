import type { Flag } from "../args.ts";
import { type Context, wholeNumber } from "../context.ts";
import { CliError, EXIT, quote, usageError } from "../errors.ts";
import { ListWriter, type Row } from "../output/list.ts";
import { RpcError } from "../transport/rpc-error.ts";
import type { Json } from "../transport/unary.ts";

export const PAGE_FLAGS: readonly Flag[] = [
  { long: "limit", value: "N", conflicts: ["page-size", "page-token"], help: "at most N entries (default: all)" },
  { long: "page-size", value: "N", help: "one page of N entries, at most 1000, instead of all" },
  {
    long: "page-token",
    value: "TOKEN",
    mayBeEmpty: true,
    help: "one page, from here on: next_page_token of the page before",
  },
];

/** Labels of a list, as the official command line spells it. */
export const SELECTOR_FLAG: Flag = {
  long: "selector",
  short: "l",
  value: "K=V,…",
  mayBeEmpty: true,
  help: "only those with these labels, all of them",
};

/** Entries asked for at a time when everything is wanted. */
const PAGE_ENTRIES = 100;
const MAX_PAGE_ENTRIES = 1000;
const MAX_LIMIT = 1_000_000;
/** Pages of one list; a gateway that gives more never ends. */
const MAX_PAGES = 100_000;

/** One page of an answer. */
export interface Page {
  readonly items: readonly unknown[];
  /** Empty at the end. */
  readonly nextPageToken: string;
}

/** The pages of a list, each asked for when the one before has been used: what is held is one page. */
export async function* pagesOf(
  context: Context,
  method: string,
  request: Json,
  collection: string,
  limit = Number.POSITIVE_INFINITY,
  entries = PAGE_ENTRIES,
): AsyncGenerator<Page> {
  let pageToken = "";
  let left = limit;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const answer = await context.call(method, { ...request, pageSize: Math.min(entries, left), pageToken });
    const found = pageOf(answer, collection);
    left -= found.items.length;
    yield found;
    if (found.nextPageToken === "" || left <= 0) return;
    if (found.nextPageToken === pageToken) break;
    pageToken = found.nextPageToken;
  }
  throw new CliError("the gateway's list does not end: it repeats a page", {
    code: "answer_incomplete",
    next: "Compare `openshell status` with `openshell --version`",
  });
}

function pageOf(answer: Json, collection: string): Page {
  const items = answer[collection];
  const token = answer["nextPageToken"];
  return { items: Array.isArray(items) ? items : [], nextPageToken: typeof token === "string" ? token : "" };
}

/** What a list command shows, and where it comes from. */
export interface Listing<T> {
  readonly method: string;
  /** Beside scope and page. */
  readonly request?: Json;
  /** Name of the collection in the answer and in structured output. */
  readonly collection: string;
  readonly view: (item: unknown) => T;
  readonly structured: (view: T) => Json;
  /** Line of `--names`, `--ids` and the like; undefined for a table. */
  readonly line: ((view: T) => string) | undefined;
  readonly headers: readonly string[];
  readonly row: (view: T) => Row;
  /** Said when there is nothing. */
  readonly empty: string;
}

/** Runs a list command: one page where a page was asked for, else everything, written page by page. */
export async function printList<T>(context: Context, listing: Listing<T>): Promise<number> {
  const writer = new ListWriter(context, listing);
  let nextPageToken = "";
  for await (const page of chosenPages(context, listing)) {
    await writer.write(page.items.map(listing.view));
    nextPageToken = page.nextPageToken;
  }
  await writer.end(nextPageToken);
  if (nextPageToken !== "") await context.say(context.err.dim(`more: --page-token ${nextPageToken}`));
  return EXIT.ok;
}

async function* chosenPages<T>(context: Context, listing: Listing<T>): AsyncGenerator<Page> {
  const { args } = context;
  const request = {
    workspaceScope: args.has("all-workspaces") ? { allWorkspaces: {} } : context.scope,
    ...(args.value("selector") === undefined ? {} : { labelSelector: args.value("selector") }),
    ...listing.request,
  };
  const pageSize = wholeNumber(args.value("page-size"), "page-size", 1, MAX_PAGE_ENTRIES);
  const pageToken = args.value("page-token");
  const limit = wholeNumber(args.value("limit"), "limit", 1, MAX_LIMIT);
  try {
    if (pageSize === undefined && pageToken === undefined) {
      yield* pagesOf(context, listing.method, request, listing.collection, limit);
      return;
    }
    const wanted = { ...request, pageSize: pageSize ?? PAGE_ENTRIES, pageToken: pageToken ?? "" };
    yield pageOf(await context.call(listing.method, wanted), listing.collection);
  } catch (error) {
    throw wrongSelector(error, args.value("selector")) ?? wrongToken(error, pageToken) ?? error;
  }
}

function wrongSelector(error: unknown, selector: string | undefined): CliError | undefined {
  const what = violationOf(error, "label_selector");
  if (what === undefined || selector === undefined) return undefined;
  return usageError(`--selector ${quote(selector)}: ${what}`, "Write --selector KEY=VALUE,KEY2=VALUE2");
}

function wrongToken(error: unknown, token: string | undefined): CliError | undefined {
  const what = violationOf(error, "page_token");
  if (what === undefined || token === undefined) return undefined;
  return usageError(`--page-token: ${what}`, "Use next_page_token of the page before, with the same other options");
}

function violationOf(error: unknown, field: string): string | undefined {
  if (!(error instanceof RpcError)) return undefined;
  return error.violations.find((violation) => violation.field === field)?.description;
}

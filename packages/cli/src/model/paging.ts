import type { Flag } from "../args.ts";
import { type Context, wholeNumber } from "../context.ts";
import type { Json } from "../transport/unary.ts";

export const PAGE_FLAGS: readonly Flag[] = [
  { long: "page-size", value: "N", help: "entries of one page, at most 1000 (default: 100)" },
  { long: "page-token", value: "TOKEN", help: "where to go on: next_page_token of the page before" },
];

/** Scope and page of a list request. */
export function listRequest(context: Context, defaultSize = 100): Json {
  const { args } = context;
  return {
    workspaceScope: args.has("all-workspaces") ? { allWorkspaces: {} } : context.scope,
    pageSize: wholeNumber(args.value("page-size"), "page-size", 1, 1000) ?? defaultSize,
    pageToken: args.value("page-token") ?? "",
  };
}

/** Says on standard error that there is more. */
export async function nextPageHint(context: Context, answer: Json): Promise<void> {
  const token = answer["nextPageToken"];
  if (typeof token === "string" && token !== "") await context.say(context.err.dim(`more: --page-token ${token}`));
}

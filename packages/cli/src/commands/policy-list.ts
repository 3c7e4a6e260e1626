import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { quote, usageError } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { PAGE_FLAGS, printList } from "../model/paging.ts";
import { revisionObject } from "../model/policy-revision.ts";
import { object, text } from "../model/sandbox.ts";
import { cell, formatTime } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["policy", "list"],
  summary: "list the revisions of a policy",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [...PAGE_FLAGS, { long: "global", help: "of the gateway, in place of a sandbox's" }, OUTPUT_FLAG],
  about: ["The newest comes first."],
  examples: ["openshell policy list dev"],
};

const ERROR_WIDTH = 40;

export async function run(context: Context, args: Args): Promise<number> {
  const [given] = args.positionals;
  const global = args.has("global");
  if (global && given !== undefined)
    throw usageError(`--global and the sandbox ${quote(given)} exclude each other`, "Keep one of them");
  const request = global ? { global: true, workspaceScope: undefined } : { sandbox: await sandboxName(context, given) };
  return printList<Json>(context, {
    method: "ListSandboxPolicies",
    request,
    collection: "revisions",
    view: (item) => revisionObject(object(item)),
    structured: (revision) => revision,
    line: undefined,
    headers: ["VERSION", "HASH", "STATUS", "CREATED", "ERROR"],
    row: (revision) => [
      String(revision["version"]),
      cell(text(revision["hash"]).slice(0, 12)),
      cell(revision["status"]),
      formatTime(revision["created_at"]),
      cell(text(revision["load_error"]).slice(0, ERROR_WIDTH)),
    ],
    empty: "No policy revisions found.\n",
  });
}

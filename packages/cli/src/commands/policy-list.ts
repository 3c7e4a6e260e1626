import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { listRequest, nextPageHint, PAGE_FLAGS } from "../model/paging.ts";
import { revisionObject } from "../model/policy-revision.ts";
import { object, text } from "../model/sandbox.ts";
import { renderTable } from "../output/table.ts";
import { cell, formatTime } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["policy", "list"],
  summary: "list the revisions of a policy",
  positionals: [{ name: "SANDBOX" }],
  flags: [...PAGE_FLAGS, OUTPUT_FLAG],
  examples: ["openshell policy list dev"],
};

const DEFAULT_PAGE = 20;
const ERROR_WIDTH = 40;

export async function run(context: Context, args: Args): Promise<number> {
  const name = await sandboxName(context, args.positionals[0]);
  const answer = await context.call("ListSandboxPolicies", { ...listRequest(context, DEFAULT_PAGE), sandbox: name });
  const revisions = (Array.isArray(answer["revisions"]) ? answer["revisions"] : []).map((item) =>
    revisionObject(object(item)),
  );
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured({ revisions, next_page_token: answer["nextPageToken"] ?? "" }, format);
    return EXIT.ok;
  }
  if (revisions.length === 0) await context.print("No policy revisions found.\n");
  else {
    const rows = revisions.map((revision) => [
      String(revision["version"]),
      cell(text(revision["hash"]).slice(0, 12)),
      cell(revision["status"]),
      formatTime(revision["created_at"]),
      cell(text(revision["load_error"]).slice(0, ERROR_WIDTH)),
    ]);
    await context.print(renderTable(["VERSION", "HASH", "STATUS", "CREATED", "ERROR"], rows, context.out));
  }
  await nextPageHint(context, answer);
  return EXIT.ok;
}

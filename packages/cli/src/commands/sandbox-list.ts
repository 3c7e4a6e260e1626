import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { listRequest, nextPageHint, PAGE_FLAGS } from "../model/paging.ts";
import { paintPhase, sandboxObject, sandboxView } from "../model/sandbox.ts";
import { renderTable } from "../output/table.ts";
import { cell, formatTime } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "list"],
  summary: "list sandboxes",
  flags: [
    ...PAGE_FLAGS,
    { long: "ids", conflicts: ["names", "output"], help: "print ids only" },
    { long: "names", conflicts: ["output"], help: "print names only" },
    { long: "selector", value: "K=V,…", help: "only sandboxes with these labels" },
    { long: "all-workspaces", help: "of all workspaces (administrators)" },
    OUTPUT_FLAG,
  ],
  examples: ["openshell sandbox list", "openshell sandbox list --selector team=blue -o json"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const request = { ...listRequest(context), labelSelector: args.value("selector") ?? "" };
  const answer = await context.call("ListSandboxes", request);
  const views = (Array.isArray(answer["sandboxes"]) ? answer["sandboxes"] : []).map(sandboxView);
  const all = args.has("all-workspaces");
  const format = context.outputFormat;
  if (format !== "table") {
    const nextPageToken = answer["nextPageToken"] ?? "";
    await context.printStructured({ sandboxes: views.map(sandboxObject), next_page_token: nextPageToken }, format);
    return EXIT.ok;
  }
  if (args.has("ids") || args.has("names")) {
    const line = args.has("ids")
      ? views.map((view) => view.id)
      : views.map((view) => (all ? `${view.workspace}/${view.name}` : view.name));
    await context.print(line.map((item) => `${cell(item)}\n`).join(""));
  } else if (views.length === 0) {
    await context.print("No sandboxes found.\n");
  } else {
    const rows = views.map((view) => [
      ...(all ? [cell(view.workspace)] : []),
      cell(view.name),
      formatTime(view.created),
      { text: view.phase, paint: paintPhase(view.phase, context.out) },
    ]);
    await context.print(renderTable([...(all ? ["WORKSPACE"] : []), "NAME", "CREATED", "PHASE"], rows, context.out));
  }
  await nextPageHint(context, answer);
  return EXIT.ok;
}

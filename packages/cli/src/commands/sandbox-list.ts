import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { PAGE_FLAGS, printList, SELECTOR_FLAG } from "../model/paging.ts";
import { paintPhase, type SandboxView, sandboxObject, sandboxView } from "../model/sandbox.ts";
import { cell, formatTime } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "list"],
  summary: "list sandboxes",
  flags: [
    SELECTOR_FLAG,
    ...PAGE_FLAGS,
    { long: "ids", conflicts: ["names", "output"], help: "print ids only" },
    { long: "names", conflicts: ["output"], help: "print names only" },
    { long: "all-workspaces", help: "of all workspaces (administrators)" },
    OUTPUT_FLAG,
  ],
  about: ["The oldest come first; those of the same time by name."],
  examples: ["openshell sandbox list", "openshell sandbox list -l team=blue -o json"],
};

export function run(context: Context, args: Args): Promise<number> {
  const all = args.has("all-workspaces");
  const nameOf = (view: SandboxView): string => cell(all ? `${view.workspace}/${view.name}` : view.name);
  return printList<SandboxView>(context, {
    method: "ListSandboxes",
    collection: "sandboxes",
    view: sandboxView,
    structured: sandboxObject,
    line: args.has("ids") ? (view) => cell(view.id) : args.has("names") ? nameOf : undefined,
    headers: [...(all ? ["WORKSPACE"] : []), "NAME", "CREATED", "PHASE"],
    row: (view) => [
      ...(all ? [cell(view.workspace)] : []),
      cell(view.name),
      formatTime(view.created),
      { text: view.phase, paint: paintPhase(view.phase, context.out) },
    ],
    empty: "No sandboxes found.\n",
  });
}

import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { PAGE_FLAGS, printList, SELECTOR_FLAG } from "../model/paging.ts";
import { providerObject } from "../model/provider.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["provider", "list"],
  summary: "list providers",
  flags: [
    SELECTOR_FLAG,
    ...PAGE_FLAGS,
    { long: "names", conflicts: ["output"], help: "print names only" },
    { long: "all-workspaces", help: "of all workspaces (administrators)" },
    OUTPUT_FLAG,
  ],
  about: ["The oldest come first; those of the same time by name."],
  examples: ["openshell provider list"],
};

type Provider = ReturnType<typeof providerObject>;

export function run(context: Context, args: Args): Promise<number> {
  const all = args.has("all-workspaces");
  const count = (keys: unknown): string => String(Array.isArray(keys) ? keys.length : 0);
  const nameOf = (item: Provider): string => (all ? `${cell(item["workspace"])}/${cell(item.name)}` : cell(item.name));
  return printList<Provider>(context, {
    method: "ListProviders",
    collection: "providers",
    view: providerObject,
    structured: (item) => item,
    line: args.has("names") ? nameOf : undefined,
    headers: [...(all ? ["WORKSPACE"] : []), "NAME", "TYPE", "CREDENTIAL_KEYS", "CONFIG_KEYS"],
    row: (item) => [
      ...(all ? [cell(item["workspace"])] : []),
      cell(item.name),
      cell(item["type"]),
      count(item["credential_keys"]),
      count(item["config_keys"]),
    ],
    empty: "No providers found.\n",
  });
}

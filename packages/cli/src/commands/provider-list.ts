import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { listRequest, nextPageHint, PAGE_FLAGS } from "../model/paging.ts";
import { providerObject } from "../model/provider.ts";
import { renderTable } from "../output/table.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["provider", "list"],
  summary: "list providers",
  flags: [
    ...PAGE_FLAGS,
    { long: "names", conflicts: ["output"], help: "print names only" },
    { long: "all-workspaces", help: "of all workspaces (administrators)" },
    OUTPUT_FLAG,
  ],
  examples: ["openshell provider list"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const answer = await context.call("ListProviders", listRequest(context));
  const providers = (Array.isArray(answer["providers"]) ? answer["providers"] : []).map(providerObject);
  const all = args.has("all-workspaces");
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured({ providers, next_page_token: answer["nextPageToken"] ?? "" }, format);
    return EXIT.ok;
  }
  const count = (keys: unknown): string => String(Array.isArray(keys) ? keys.length : 0);
  if (args.has("names")) {
    const names = providers.map((item) => (all ? `${cell(item["workspace"])}/${cell(item.name)}` : cell(item.name)));
    await context.print(names.map((item) => `${item}\n`).join(""));
  } else if (providers.length === 0) {
    await context.print("No providers found.\n");
  } else {
    const rows = providers.map((item) => [
      ...(all ? [cell(item["workspace"])] : []),
      cell(item.name),
      cell(item["type"]),
      count(item["credential_keys"]),
      count(item["config_keys"]),
    ]);
    const headers = [...(all ? ["WORKSPACE"] : []), "NAME", "TYPE", "CREDENTIAL_KEYS", "CONFIG_KEYS"];
    await context.print(renderTable(headers, rows, context.out));
  }
  await nextPageHint(context, answer);
  return EXIT.ok;
}

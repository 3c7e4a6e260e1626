import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { PAGE_FLAGS, printList } from "../model/paging.ts";
import { keysText, providerObject } from "../model/provider.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "provider", "list"],
  summary: "list the providers of a sandbox",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [...PAGE_FLAGS, OUTPUT_FLAG],
  about: ["By name, never with values. Without NAME of the sandbox that was used last."],
  examples: ["openshell sandbox provider list dev"],
};

type Provider = ReturnType<typeof providerObject>;

export async function run(context: Context, args: Args): Promise<number> {
  const sandbox = await sandboxName(context, args.positionals[0]);
  return await printList<Provider>(context, {
    method: "ListSandboxProviders",
    request: { sandbox },
    collection: "providers",
    view: providerObject,
    structured: ({ name, type, credential_keys, config_keys }) => ({ name, type, credential_keys, config_keys }),
    line: undefined,
    headers: ["NAME", "TYPE", "CREDENTIAL_KEYS", "CONFIG_KEYS"],
    row: (item) => [
      cell(item.name),
      cell(item["type"]),
      cell(keysText(item["credential_keys"])),
      cell(keysText(item["config_keys"])),
    ],
    empty: "No providers are attached.\n",
  });
}

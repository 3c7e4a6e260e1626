import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { keysText, providerObject } from "../model/provider.ts";
import { renderDetails } from "../output/table.ts";
import { cell, formatTime } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["provider", "get"],
  summary: "show one provider, without values",
  positionals: [{ name: "NAME", names: "providers", required: true }],
  flags: [OUTPUT_FLAG],
  examples: ["openshell provider get model"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const name = requirePositional(args, 0, "the name of the provider", spec);
  const provider = providerObject(
    (await context.call("GetProvider", { workspaceScope: context.scope, name }))["provider"],
  );
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured(provider, format);
    return EXIT.ok;
  }
  const lines = [
    ["Id", cell(provider["id"])],
    ["Name", cell(provider.name)],
    ["Type", cell(provider["type"])],
    ["Resource version", String(provider["resource_version"])],
    ["Created", formatTime(provider["created_at"])],
    ["Credential keys", keysText(provider["credential_keys"])],
    ["Config keys", keysText(provider["config_keys"])],
  ] as const;
  await context.print(renderDetails("Provider", lines, context.out));
  return EXIT.ok;
}

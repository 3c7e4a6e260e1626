import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { CliError, codeOf, EXIT, usageError } from "../errors.ts";
import { CREDENTIAL_FLAGS, configOf, credentialsOf } from "../model/credentials.ts";
import { keysText, providerObject } from "../model/provider.ts";
import { cell } from "../output/terminal.ts";
import { RpcError } from "../transport/rpc-error.ts";

export const spec: CommandSpec = {
  path: ["provider", "create"],
  summary: "store a provider",
  flags: [
    { long: "name", value: "NAME", help: "name of the provider" },
    { long: "type", value: "TYPE", help: "kind of service, such as generic, openai or github" },
    ...CREDENTIAL_FLAGS,
  ],
  about: [
    "Values are encrypted in the gateway's store and never shown again. A sandbox sees a placeholder instead.",
    "Prefer --credential KEY (from the variable) or --credential KEY=- (from standard input): other processes can read a command line.",
  ],
  examples: [
    "openshell provider create --name model --type generic --credential MODEL_API_KEY",
    "pass show model-key | openshell provider create --name model --type generic --credential MODEL_API_KEY=-",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const name = args.value("name");
  const type = args.value("type");
  if (name === undefined || type === undefined)
    throw usageError(
      `${[name === undefined ? "--name" : "", type === undefined ? "--type" : ""].filter(Boolean).join(" and ")} must be given`,
      `Write openshell provider create --name ${name ?? "model"} --type ${type ?? "generic"} --credential KEY`,
    );
  const credentials = await credentialsOf(context);
  if (Object.keys(credentials).length === 0) throw usageError("no credential is given", "Write --credential KEY");
  const provider = { metadata: { name }, type, credentials, config: configOf(context) };
  try {
    const answer = await context.call("CreateProvider", { workspaceScope: context.scope, provider });
    const created = providerObject(answer["provider"]);
    await context.success(`Created provider ${cell(created.name)} with ${keysText(created["credential_keys"])}.`);
    return EXIT.ok;
  } catch (error) {
    if (!(error instanceof RpcError) || error.code !== "already_exists") throw error;
    throw new CliError(error.message, {
      code: codeOf(error),
      next: `openshell provider update ${name} changes it`,
      cause: error,
    });
  }
}

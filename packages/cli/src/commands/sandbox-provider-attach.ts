import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import {
  PROVIDER_WAIT_ABOUT,
  PROVIDER_WAIT_FLAGS,
  providerWaitSeconds,
  showTargets,
  targetOf,
} from "../model/provider-status.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "provider", "attach"],
  summary: "give a sandbox a provider while it exists",
  positionals: [
    { name: "NAME", names: "sandboxes", required: true },
    { name: "PROVIDER", names: "providers", required: true },
  ],
  flags: [...PROVIDER_WAIT_FLAGS, OUTPUT_FLAG],
  about: [
    "Processes that start afterwards see a placeholder for each credential; a policy's credential_binding says where it is replaced.",
    PROVIDER_WAIT_ABOUT,
  ],
  examples: ["openshell sandbox provider attach dev model --wait"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const sandbox = requirePositional(args, 0, "the name of the sandbox", spec);
  const provider = requirePositional(args, 1, "the name of the provider", spec);
  const seconds = providerWaitSeconds(context);
  const answer = await context.call("AttachSandboxProvider", { workspaceScope: context.scope, sandbox, provider });
  if (context.outputFormat === "table") {
    const done = answer["attached"] === true;
    const text = `rovider ${cell(provider)} ${done ? "is attached" : "was attached already"} to sandbox ${cell(sandbox)}.`;
    await (done ? context.success(`P${text}`) : context.say(`· P${text}`));
    if (!args.has("wait")) return 0;
  }
  return showTargets(context, [targetOf(answer["receipt"])], seconds);
}

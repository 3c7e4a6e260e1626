import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { cell } from "../output/terminal.ts";
import {
  PROVIDER_WAIT_ABOUT,
  PROVIDER_WAIT_FLAGS,
  providerWaitSeconds,
  showTargets,
  targetOf,
} from "./provider-status.ts";

/** One of the two changes of a sandbox's providers. */
export interface ProviderChange {
  readonly word: "attach" | "detach";
  readonly summary: string;
  readonly about: string;
  readonly method: "AttachSandboxProvider" | "DetachSandboxProvider";
  /** Field of the answer that says whether anything changed. */
  readonly changed: "attached" | "detached";
  /** Between the provider and the sandbox, when it changed and when not. */
  readonly done: string;
  readonly already: string;
}

export function changeSpec({ word, summary, about }: ProviderChange): CommandSpec {
  return {
    path: ["sandbox", "provider", word],
    summary,
    positionals: [
      { name: "NAME", names: "sandboxes", required: true },
      { name: "PROVIDER", names: "providers", required: true },
    ],
    flags: [...PROVIDER_WAIT_FLAGS, OUTPUT_FLAG],
    about: [about, PROVIDER_WAIT_ABOUT],
    examples: [`openshell sandbox provider ${word} dev model --wait`],
  };
}

/** Asks for the change, says what was stored, and waits where that was asked for. Gives the exit status. */
export async function changeProvider(
  context: Context,
  args: Args,
  spec: CommandSpec,
  { method, changed, done, already }: ProviderChange,
): Promise<number> {
  const sandbox = requirePositional(args, 0, "the name of the sandbox", spec);
  const provider = requirePositional(args, 1, "the name of the provider", spec);
  const seconds = providerWaitSeconds(context);
  const answer = await context.call(method, { workspaceScope: context.scope, sandbox, provider });
  if (context.outputFormat === "table") {
    const said = (between: string): string => `Provider ${cell(provider)} ${between} sandbox ${cell(sandbox)}.`;
    await (answer[changed] === true ? context.success(said(done)) : context.say(`· ${said(already)}`));
    if (!args.has("wait")) return EXIT.ok;
  }
  return showTargets(context, [targetOf(answer["receipt"])], seconds);
}

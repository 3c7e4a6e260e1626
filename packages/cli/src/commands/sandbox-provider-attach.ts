import type { Args } from "../args.ts";
import type { Context } from "../context.ts";
import { changeProvider, changeSpec, type ProviderChange } from "../model/provider-change.ts";

const change: ProviderChange = {
  word: "attach",
  summary: "give a sandbox a provider while it exists",
  about:
    "Processes that start afterwards see a placeholder for each credential; a policy's credential_binding says where it is replaced.",
  method: "AttachSandboxProvider",
  changed: "attached",
  done: "is attached to",
  already: "was attached already to",
};

export const spec = changeSpec(change);

export function run(context: Context, args: Args): Promise<number> {
  return changeProvider(context, args, spec, change);
}

import type { Args } from "../args.ts";
import type { Context } from "../context.ts";
import { changeProvider, changeSpec, type ProviderChange } from "../model/provider-change.ts";

const change: ProviderChange = {
  word: "detach",
  summary: "take a provider from a sandbox",
  about:
    "Its credentials stop resolving, also for processes that run. Refused while the policy gives the provider to an endpoint.",
  method: "DetachSandboxProvider",
  changed: "detached",
  done: "is detached from",
  already: "was not attached to",
};

export const spec = changeSpec(change);

export function run(context: Context, args: Args): Promise<number> {
  return changeProvider(context, args, spec, change);
}

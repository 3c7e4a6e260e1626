import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import {
  PROVIDER_WAIT_ABOUT,
  PROVIDER_WAIT_FLAGS,
  providerWaitSeconds,
  showTargets,
} from "../model/provider-status.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "provider", "status"],
  summary: "say how far a provider is in force",
  positionals: [
    { name: "NAME", names: "sandboxes", required: true },
    { name: "PROVIDER", names: "providers", required: true },
  ],
  flags: [
    { long: "receipt", value: "ID", help: "of one change; default: what is wanted now" },
    ...PROVIDER_WAIT_FLAGS,
    OUTPUT_FLAG,
  ],
  about: [
    "States: persisted, pending, ready, withheld, revoked (detached), failed, superseded (a later change is wanted).",
    PROVIDER_WAIT_ABOUT,
  ],
  examples: ["openshell sandbox provider status dev model", "openshell sandbox provider status dev model -o json"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const sandbox = requirePositional(args, 0, "the name of the sandbox", spec);
  const provider = requirePositional(args, 1, "the name of the provider", spec);
  const seconds = providerWaitSeconds(context);
  return showTargets(context, [{ sandbox, provider, receiptId: args.value("receipt") ?? "" }], seconds);
}

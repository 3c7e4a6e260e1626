import { type Args, type CommandSpec, requirePositional } from "../args.ts";
import { type Context, OUTPUT_FLAG, pairs } from "../context.ts";
import { EXIT, quote, usageError } from "../errors.ts";
import { CREDENTIAL_FLAGS, configOf, credentialsOf } from "../model/credentials.ts";
import { providerObject } from "../model/provider.ts";
import {
  PROVIDER_WAIT_ABOUT,
  PROVIDER_WAIT_FLAGS,
  providerWaitSeconds,
  showTargets,
  targetOf,
} from "../model/provider-status.ts";
import { text } from "../model/sandbox.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["provider", "update"],
  summary: "change credentials or settings",
  positionals: [{ name: "NAME", names: "providers", required: true }],
  flags: [
    ...CREDENTIAL_FLAGS,
    {
      long: "credential-expires-at",
      value: "KEY=TIME",
      many: true,
      help: "when a credential stops being valid: RFC 3339, or milliseconds since 1970; 0 for never",
    },
    ...PROVIDER_WAIT_FLAGS,
    OUTPUT_FLAG,
  ],
  about: [
    "Keys that are given replace stored ones; an empty value removes a key. Running sandboxes use the new values at once.",
    PROVIDER_WAIT_ABOUT,
  ],
  examples: [
    "openshell provider update model --credential MODEL_API_KEY",
    "openshell provider update model --credential MODEL_API_KEY --wait",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const name = requirePositional(args, 0, "the name of the provider", spec);
  const seconds = providerWaitSeconds(context);
  const credentials = await credentialsOf(context);
  const config = configOf(context);
  const expiries = pairs(args.values("credential-expires-at"), "credential-expires-at");
  if (Object.keys({ ...credentials, ...config, ...expiries }).length === 0) {
    throw usageError(
      "nothing is to be changed",
      "Write --credential KEY, --config KEY=VALUE or --credential-expires-at KEY=TIME",
    );
  }
  const clear = Object.keys(expiries).filter((key) => expiries[key] === "0");
  const times = Object.entries(expiries).flatMap(([key, text]) =>
    text === "0" ? [] : [[key, expiryTime(key, text)] as const],
  );
  const answer = await context.call("UpdateProvider", {
    workspaceScope: context.scope,
    provider: { metadata: { name }, credentials, config },
    credentialExpirationTimes: Object.fromEntries(times),
    clearCredentialExpirationKeys: clear,
  });
  const updated = providerObject(answer["provider"]);
  const receipts: readonly unknown[] = Array.isArray(answer["targetReceipts"]) ? answer["targetReceipts"] : [];
  const count = receipts.length;
  const reach = count === 0 ? "" : `; ${count} ${count === 1 ? "sandbox takes" : "sandboxes take"} it up`;
  if (context.outputFormat === "table") {
    await context.success(`Updated provider ${cell(updated.name)}${reach}.`);
    if (!args.has("wait")) return EXIT.ok;
  }
  return showTargets(context, receipts.map(targetOf), seconds, text(answer["mutationId"]));
}

const RFC_3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/;
/** The last millisecond that the API can carry. */
const LATEST = Date.parse("9999-12-31T23:59:59.999Z");

function expiryTime(key: string, text: string): string {
  const time = /^\d{1,15}$/.test(text) ? new Date(Number(text)) : RFC_3339.test(text) ? new Date(text) : undefined;
  // The calendar is JavaScript's, which takes 30 February for 2 March.
  const day = text.slice(0, 10);
  const real = !RFC_3339.test(text) || new Date(`${day}T00:00:00Z`).toJSON()?.slice(0, 10) === day;
  if (time === undefined || !real || !(time.getTime() <= LATEST)) {
    throw usageError(`--credential-expires-at ${key}: ${quote(text)} is no time`, "Write 2027-01-31T12:00:00Z");
  }
  return time.toISOString();
}

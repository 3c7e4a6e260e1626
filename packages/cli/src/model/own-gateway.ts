import type { Flag } from "../args.ts";
import type { Context } from "../context.ts";
import { quote, usageError } from "../errors.ts";
import { activeGateway, DEFAULT_GATEWAY, embedded, type Target } from "../gateway/resolve.ts";

export const NAME_FLAG: Flag = {
  long: "name",
  value: "NAME",
  help: `gateway of this machine (default: the active one if it is of this machine, else ${DEFAULT_GATEWAY})`,
};

/** The gateway of this machine that a `gateway` command is about. */
export function ownGateway(context: Context): Target & { readonly kind: "embedded" } {
  const named = context.args.value("name") ?? context.args.value("gateway");
  if (named === undefined && context.args.value("gateway-endpoint") !== undefined) {
    throw usageError("--gateway-endpoint names no gateway of this machine", "Use --name");
  }
  const target = embedded(named ?? activeOwn(context) ?? DEFAULT_GATEWAY, context.surroundings);
  if (target !== undefined) return target;
  throw usageError(
    `${quote(named ?? DEFAULT_GATEWAY)} cannot name a gateway`,
    "Use lower-case letters, digits and hyphens, at most 63",
  );
}

/** The active gateway where it is one of this machine. */
function activeOwn(context: Context): string | undefined {
  const name = activeGateway(context.surroundings);
  const target = name === undefined ? undefined : embedded(name, context.surroundings);
  return target !== undefined && process.getBuiltinModule("node:fs").existsSync(target.paths.state) ? name : undefined;
}

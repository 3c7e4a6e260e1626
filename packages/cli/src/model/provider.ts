import { missingInAnswer } from "../context.ts";
import type { Json } from "../transport/unary.ts";
import { object, text } from "./sandbox.ts";

/** A provider without values, in the names of structured output. */
export function providerObject(message: unknown): Json & { readonly name: string } {
  const provider = object(message);
  const metadata = object(provider["metadata"]);
  if (typeof metadata["name"] !== "string") throw missingInAnswer("provider");
  const expiries = object(provider["credentialExpirationTimes"]);
  return {
    id: text(metadata["id"]),
    name: metadata["name"],
    workspace: text(metadata["workspace"]),
    type: text(provider["type"]),
    credential_keys: Object.keys(object(provider["credentials"])).sort(),
    config_keys: Object.keys(object(provider["config"])).sort(),
    ...(Object.keys(object(metadata["labels"])).length === 0 ? {} : { labels: metadata["labels"] }),
    resource_version: Number(metadata["resourceVersion"] ?? 0),
    created_at: metadata["createdTime"] ?? null,
    ...(Object.keys(expiries).length === 0 ? {} : { credential_expiration_times: expiries }),
  };
}

export function keysText(keys: unknown): string {
  return Array.isArray(keys) && keys.length > 0 ? keys.join(", ") : "<none>";
}

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { type NameKind, parseCommandLine } from "../args.ts";
import { Context, type Surroundings } from "../context.ts";
import { activeGateway, DEFAULT_GATEWAY, registrationRoots } from "../gateway/resolve.ts";
import { lastUsed } from "../model/last-sandbox.ts";
import { policyStatus } from "../model/policy-revision.ts";
import { object, phaseName, text } from "../model/sandbox.ts";
import { callUnary, type Json } from "../transport/unary.ts";
import type { Candidate } from "./complete.ts";

/** Whoever presses a key waits no longer than this for a gateway. Milliseconds. */
const NAMES_TIMEOUT_MS = 700;
/** Names of one kind; nobody reads more. */
const MAX_NAMES = 1000;
/** What names of the project look like. Anything else (spaces, escape sequences, `$(…)`) is not offered to a shell. */
const PLAIN = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$/;

/** Names that exist now. Rejects when nobody answers in time. */
export async function liveNames(
  kind: NameKind,
  globalOptions: readonly string[],
  sandbox: string | undefined,
  surroundings: Surroundings,
): Promise<readonly Candidate[]> {
  if (kind === "gateways") return plain(gatewayNames(surroundings));
  const args = parseCommandLine({ path: [], summary: "", flags: [] }, globalOptions, surroundings.env);
  const context = new Context(args, surroundings);
  // The call alone: nothing here starts a gateway.
  const call = (method: string, message: Json) =>
    callUnary(context.target.endpoint, method, message, { timeoutMs: NAMES_TIMEOUT_MS });
  const scope = { workspaceScope: context.scope };
  const page = { pageSize: MAX_NAMES };
  const list = async (method: string, message: Json, collection: string): Promise<readonly Json[]> => {
    const items = (await call(method, message))[collection];
    return Array.isArray(items) ? items.map(object) : [];
  };
  const named = (item: Json, about?: string): Candidate => ({
    word: text(object(item["metadata"])["name"]),
    ...(about === undefined ? {} : { about }),
  });
  const ofSandbox = (): string => sandbox ?? lastUsed(context) ?? "";
  switch (kind) {
    case "sandboxes": {
      const sandboxes = await list("ListSandboxes", { ...scope, ...page }, "sandboxes");
      return plain(sandboxes.map((item) => named(item, phaseName(object(item["status"])["phase"]))));
    }
    case "providers":
      return plain(
        (await list("ListProviders", { ...scope, ...page }, "providers")).map((item) =>
          named(item, text(item["type"])),
        ),
      );
    case "workspaces":
      return plain((await list("ListWorkspaces", page, "workspaces")).map((item) => named(item)));
    case "revisions": {
      const revisions = await list("ListSandboxPolicies", { ...scope, ...page, sandbox: ofSandbox() }, "revisions");
      return plain(revisions.map((item) => ({ word: text(item["version"]), about: policyStatus(item["status"]) })));
    }
    case "rules": {
      const config = await call("GetSandboxConfig", { ...scope, name: ofSandbox() });
      return plain(Object.keys(object(object(config["policy"])["networkPolicies"])).map((word) => ({ word })));
    }
  }
}

function plain(found: readonly Candidate[]): readonly Candidate[] {
  return found
    .filter(({ word, about }) => PLAIN.test(word) && (about === undefined || /^[\w ./-]*$/.test(about)))
    .slice(0, MAX_NAMES);
}

function gatewayNames(surroundings: Surroundings): readonly Candidate[] {
  const names = new Set([DEFAULT_GATEWAY, activeGateway(surroundings) ?? DEFAULT_GATEWAY]);
  for (const root of registrationRoots(surroundings)) {
    try {
      for (const name of readdirSync(join(root, "gateways"))) names.add(name);
    } catch {
      // No registrations there.
    }
  }
  return [...names].toSorted().map((word) => ({ word }));
}

import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT, toCliError } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { beginWait, policyStored, WAIT_ABOUT, WAIT_FLAGS, waitSeconds } from "../model/policy-wait.ts";
import { object } from "../model/sandbox.ts";
import { cell } from "../output/terminal.ts";
import { type Operation, operationsOf } from "../policy/operations.ts";

export const spec: CommandSpec = {
  path: ["policy", "update"],
  summary: "change a part of the policy of a sandbox",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [
    {
      long: "add-endpoint",
      value: "ENDPOINT",
      many: true,
      help: "HOST:PORT[:ACCESS[:PROTOCOL[:ENFORCEMENT[:OPTION,…]]]], such as api.example.com:443:read-only:rest:enforce",
    },
    { long: "remove-endpoint", value: "HOST:PORT", many: true, help: "in every rule, or in that of --rule-name" },
    {
      long: "add-allow",
      value: "REQUEST",
      many: true,
      help: "HOST:PORT[,PORT…]:METHOD:PATH of an endpoint of --rule-name; all its ports and executables must be named",
    },
    { long: "add-deny", value: "REQUEST", many: true, help: "as --add-allow, refused whatever else allows it" },
    { long: "remove-rule", value: "NAME", names: "rules", many: true, help: "a rule with all its endpoints" },
    {
      long: "rule-name",
      value: "NAME",
      names: "rules",
      help: "the rule (default: one with the same endpoint, else allow_HOST_PORT)",
    },
    { long: "binary", value: "PATH", many: true, conflicts: ["any-binary"], help: "executable that may use it" },
    { long: "any-binary", help: "any program may use it" },
    { long: "endpoint-path", value: "PATH", mayBeEmpty: true, help: 'path of the endpoint; "" for the one without' },
    { long: "dry-run", conflicts: ["wait", "no-wait"], help: "print the policy that would result, and change nothing" },
    ...WAIT_FLAGS,
  ],
  about: [
    "All changes are made, or none. No program gets an endpoint, and no endpoint a program, that were not named together.",
    "ACCESS is read-only, read-write or full; PROTOCOL rest, websocket or tcp; ENFORCEMENT enforce or audit;",
    "OPTION allowed-ip=CIDR, allow-uninspected-credentials, websocket-credential-rewrite or request-body-credential-rewrite.",
    WAIT_ABOUT,
  ],
  examples: [
    "openshell policy update dev --add-endpoint api.example.com:443:read-only:rest:enforce --binary /usr/bin/curl --wait",
    "openshell policy update dev --rule-name api --binary /usr/bin/curl --add-allow 'api.example.com:443:POST:/v1/**'",
    "openshell policy update dev --remove-endpoint api.example.com:443 --dry-run",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const seconds = waitSeconds(context);
  const operations = operationsOf(args);
  for (const { warning } of operations) if (warning !== undefined) await context.warn(cell(warning));
  const sandbox = await sandboxName(context, args.positionals[0]);
  const scope = { workspaceScope: context.scope, sandbox };
  if (args.has("dry-run")) {
    const { revision } = await context.call("GetSandboxPolicyStatus", { ...scope, version: 0 });
    const { previewMerge } = await import("../policy/preview.ts");
    const { text, warnings } = previewMerge(object(object(revision)["policy"]), operations);
    for (const line of warnings) await context.warn(line);
    await context.print(text);
    return EXIT.ok;
  }
  const before = await context.call("GetSandboxConfig", { workspaceScope: context.scope, name: sandbox });
  const request = { ...scope, mergeOperations: operations.map(({ message }) => message) };
  const wait = beginWait(context, seconds);
  const answer = await context.call("UpdateConfig", request, wait.call).catch((error: unknown) => {
    throw named(error, operations);
  });
  return policyStored(context, sandbox, before, answer, wait);
}

/** The error with the option in place of its number in the request. */
function named(error: unknown, operations: readonly Operation[]): CliError {
  const shown = toCliError(error);
  const name = (text: string): string =>
    text.replace(
      /merge_operations\[(\d+)\][^\s:]*/g,
      (whole, index: string) => operations[Number(index)]?.option ?? whole,
    );
  const { code, exitCode, next } = shown;
  return new CliError(name(shown.message), { code, details: shown.details.map(name), next, exitCode, cause: error });
}

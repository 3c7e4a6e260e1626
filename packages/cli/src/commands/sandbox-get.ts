import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { object, sandboxLines, sandboxObject, sandboxView, text } from "../model/sandbox.ts";
import { renderDetails } from "../output/table.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "get"],
  summary: "show one sandbox",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [
    { long: "policy-only", conflicts: ["output"], help: "print the effective policy as YAML and nothing else" },
    OUTPUT_FLAG,
  ],
  about: ["Without NAME the sandbox that was used last."],
  examples: ["openshell sandbox get dev", "openshell sandbox get dev -o json"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const name = await sandboxName(context, args.positionals[0]);
  const answer = await context.call("GetSandbox", { workspaceScope: context.scope, name });
  const view = sandboxView(answer["sandbox"]);
  const config = await context.call("GetSandboxConfig", { workspaceScope: context.scope, name });
  const { plainPolicy, policyText } = await import("../policy/message.ts");
  const policy = config["policy"] === undefined ? undefined : plainPolicy(object(config["policy"]));
  if (args.has("policy-only")) {
    await context.print(policy === undefined ? "" : policyText(policy));
    return EXIT.ok;
  }
  const source =
    text(config["policySource"])
      .replace(/^POLICY_SOURCE_/, "")
      .toLowerCase() || "sandbox";
  const revision = Number(config["version"] ?? 0);
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured(
      { ...sandboxObject(view), policy_source: source, revision, policy: policy ?? null },
      format,
    );
    return EXIT.ok;
  }
  const { out } = context;
  const lines = [
    ...sandboxLines(view, out),
    ["Policy source", source] as const,
    ["Revision", String(revision)] as const,
  ];
  await context.print(renderDetails("Sandbox", lines, out));
  if (policy !== undefined) {
    const yaml = policyText(policy)
      .trimEnd()
      .split("\n")
      .map((line) => `    ${line}`)
      .join("\n");
    await context.print(`  ${out.dim("Policy:")}\n${yaml}\n`);
  }
  return EXIT.ok;
}

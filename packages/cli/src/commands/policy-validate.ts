import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT, usageError } from "../errors.ts";
import { checkPolicyFile } from "../policy/file.ts";

export const spec: CommandSpec = {
  path: ["policy", "validate"],
  summary: "check a policy file",
  positionals: [{ name: "FILE" }],
  flags: [{ long: "policy", value: "FILE", help: "the file; - for standard input" }, OUTPUT_FLAG],
  about: ["Needs no gateway. Reports every problem at once, with line and column; the exit status is 1 then."],
  examples: ["openshell policy validate policy.yaml"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const file = args.value("policy") ?? args.positionals[0];
  if (file === undefined) throw usageError("no file is named", "Write openshell policy validate FILE");
  const { policy, violations, warnings, problems } = await checkPolicyFile(file, context);
  const format = context.outputFormat;
  if (format !== "table") {
    const violation = problems.map(({ code, message, next, path, line, column }) => ({
      code,
      message,
      next,
      path,
      line,
      column,
    }));
    await context.printStructured({ file, valid: policy !== undefined, violations: violation, warnings }, format);
    return policy === undefined ? EXIT.failure : EXIT.ok;
  }
  for (const line of warnings) await context.warn(line);
  for (const line of violations) await context.say(`${context.err.red("✗")} ${line}`);
  if (policy === undefined) return EXIT.failure;
  const rules = policy.networkPolicies.size;
  await context.success(`${file} is valid: ${rules} network ${rules === 1 ? "rule" : "rules"}.`);
  return EXIT.ok;
}

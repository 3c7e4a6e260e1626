import { escapeUntrusted } from "@openshell/base/escape.ts";
import { canonicalTarget, parseQuery } from "@openshell/policy/canonical-target.ts";
import { compilePolicy } from "@openshell/policy/compile.ts";
import type { Policy } from "@openshell/policy/model.ts";
import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG, wholeNumber } from "../context.ts";
import { CliError, EXIT, quote, usageError } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { object } from "../model/sandbox.ts";
import { readPolicyFile } from "../policy/file.ts";
import { policyOf } from "../policy/message.ts";

export const spec: CommandSpec = {
  path: ["policy", "explain"],
  summary: "say why something is allowed or not",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [
    { long: "policy", value: "FILE", help: "judge by this file instead of a sandbox's policy; needs no gateway" },
    { long: "host", value: "HOST", help: "destination" },
    { long: "port", value: "PORT", help: "its port (default: 443)" },
    { long: "binary", value: "PATH", help: "program that connects (default: any that some rule allows)" },
    { long: "method", value: "METHOD", help: "HTTP method, to judge a request too" },
    { long: "path", value: "PATH", help: "its path, with a query if it has one (default: /)" },
    OUTPUT_FLAG,
  ],
  about: ["The exit status is 0 when it is allowed and 1 when it is denied."],
  examples: [
    "openshell policy explain dev --host api.example.com --port 443",
    "openshell policy explain --policy policy.yaml --host api.example.com --method POST --path /v1/chat/completions",
  ],
};

/** A program that no rule names; used when the question is about the destination alone. */
const NO_PROGRAM = "/nonexistent";

interface Verdict {
  readonly question: string;
  readonly allowed: boolean;
  readonly rule: string;
  readonly reason: string;
  readonly next: string;
}

export async function run(context: Context, args: Args): Promise<number> {
  const host = args.value("host");
  if (host === undefined) throw usageError("--host is missing", "Write --host HOST");
  const port = wholeNumber(args.value("port"), "port", 1, 65_535) ?? 443;
  const policy = await policyToJudge(context, args);
  const verdicts = judge(policy, host, port, args);
  const allowed = verdicts.every((verdict) => verdict.allowed);
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured({ allowed, decisions: verdicts }, format);
    return allowed ? EXIT.ok : EXIT.failure;
  }
  const { out } = context;
  for (const { question, allowed: yes, rule, reason, next } of verdicts) {
    const mark = yes ? out.green("✓ allowed") : out.red("✗ denied");
    await context.print(`${mark}  ${question}\n`);
    if (rule !== "") await context.print(`  ${out.dim("rule:")} ${rule}\n`);
    if (reason !== "") await context.print(`  ${out.dim("reason:")} ${reason}\n`);
    if (next !== "") await context.print(`  ${out.dim("next:")} ${next}\n`);
  }
  return allowed ? EXIT.ok : EXIT.failure;
}

async function policyToJudge(context: Context, args: Args): Promise<Policy> {
  const file = args.value("policy");
  if (file !== undefined) return (await readPolicyFile(file, context)).policy;
  const name = await sandboxName(context, args.positionals[0]);
  const config = await context.call("GetSandboxConfig", { workspaceScope: context.scope, name });
  const policy = policyOf(object(config["policy"]));
  if (policy === undefined) {
    throw new CliError("the sandbox's policy has content that this version cannot judge", {
      code: "policy_not_understood",
      next: "Compare `openshell status` with `openshell --version`",
    });
  }
  return policy;
}

function judge(policy: Policy, host: string, port: number, args: Args): readonly Verdict[] {
  const compiled = compilePolicy(policy);
  const lower = host
    .toLowerCase()
    .replace(/\.$/, "")
    .replace(/^\[|\]$/g, "");
  const wanted = args.value("binary");
  const programs = wanted === undefined ? someProgram(policy) : [{ shown: wanted, exe: wanted }];
  const decisions = programs.map(({ exe }) => compiled.connect({ host: lower, port, process: { exe, ancestors: [] } }));
  const index = Math.max(
    0,
    decisions.findIndex((decision) => decision.allowed),
  );
  const decision = decisions[index]!;
  const program = programs[index]!;
  const exe = wanted ?? (decision.allowed && program.exe !== NO_PROGRAM ? program.shown : undefined);
  const who = exe === undefined ? "" : ` by ${exe === "**" || exe === "/**" ? "any program" : escapeUntrusted(exe)}`;
  const question = `connection to ${escapeUntrusted(lower)}:${port}${who}`;
  if (!decision.allowed) {
    // No program was named, so that none can be advised but the patterns of the policy.
    const next = decision.next
      .replaceAll(JSON.stringify(NO_PROGRAM), '"<program>"')
      .replaceAll(JSON.stringify(program.exe), JSON.stringify(program.shown === "" ? "<program>" : program.shown));
    return [{ question, allowed: false, rule: decision.policy, reason: decision.reason, next }];
  }
  const how =
    decision.tls === "skip" ? "TLS is passed on unopened" : decision.inspected ? "requests are inspected" : "";
  const connection = { question, allowed: true, rule: decision.policy, reason: how, next: "" };
  const method = args.value("method");
  const path = args.value("path");
  if (method === undefined && path === undefined) return [connection];
  const target = canonicalTarget(path ?? "/", { allowEncodedSlash: true });
  if (!target.ok) {
    throw usageError(
      `--path ${quote(path ?? "/")} is no path that a request may have: ${target.reason}`,
      "Write an absolute path",
    );
  }
  const request = compiled.request(decision.grant, {
    method: method ?? "GET",
    path: target.path,
    query: parseQuery(target.query) ?? [],
    encodedSlash: target.encodedSlash,
  });
  const asked = `${escapeUntrusted(method ?? "GET")} ${escapeUntrusted(target.path)}`;
  if (!request.allowed) {
    return [
      connection,
      { question: asked, allowed: false, rule: request.policy, reason: request.reason, next: request.next },
    ];
  }
  const audited = request.audited ? `only audited; enforcement would refuse it: ${request.reason}` : "";
  const binding =
    request.credentialProvider === undefined ? "" : `credentials of provider ${request.credentialProvider}`;
  const reason = [audited, binding].filter((part) => part !== "").join("; ");
  return [connection, { question: asked, allowed: true, rule: request.policy, reason, next: "" }];
}

/** Programs that rules name, so that "is anything allowed there?" has an answer: for a pattern, a path that matches it. */
function someProgram(policy: Policy): readonly { readonly shown: string; readonly exe: string }[] {
  const paths = [...policy.networkPolicies.values()].flatMap((rule) => rule.binaries);
  if (paths.length === 0) return [{ shown: "", exe: NO_PROGRAM }];
  return [...new Set(paths)].map((shown) => {
    const plain = shown.replaceAll("**", "x").replaceAll("*", "x").replaceAll("?", "x");
    return { shown, exe: plain.startsWith("/") ? plain : `/${plain}` };
  });
}

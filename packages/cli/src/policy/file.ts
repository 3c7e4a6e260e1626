import { resolve } from "node:path";
import { toJson } from "@bufbuild/protobuf";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { decodeText, readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import type { Policy } from "@openshell/policy/model.ts";
import { parsePolicy } from "@openshell/policy/parse.ts";
import { policyToProto } from "@openshell/policy/proto.ts";
import { formatViolation, type Violation } from "@openshell/policy/violation.ts";
import type { Context } from "../context.ts";
import { CliError, quote } from "../errors.ts";
import type { Json } from "../transport/unary.ts";

/** Larger than any policy that a gateway takes (256 KiB encoded). */
const MAX_FILE_BYTES = 1024 * 1024;

export interface PolicyFile {
  readonly policy: Policy;
  readonly warnings: readonly string[];
}

/** One line a violation, with file, line and column. */
export function violationLine(violation: Violation, source: string): string {
  return escapeUntrusted(formatViolation(violation, source), 1024);
}

/** Reads and checks a policy file (`-` for standard input). Throws one error with every violation and its position. */
export async function readPolicyFile(file: string, context: Context): Promise<PolicyFile> {
  const { violations, policy, warnings } = await checkPolicyFile(file, context);
  if (policy === undefined) {
    const count = violations.length === 1 ? "1 problem" : `${violations.length} problems`;
    throw new CliError(`the policy has ${count}`, {
      code: "policy_file_invalid",
      details: violations,
      next: `Correct ${file}; openshell policy validate checks it`,
    });
  }
  return { policy, warnings };
}

export interface CheckedPolicy {
  readonly policy: Policy | undefined;
  readonly violations: readonly string[];
  readonly warnings: readonly string[];
  readonly problems: readonly Violation[];
}

export async function checkPolicyFile(file: string, context: Context): Promise<CheckedPolicy> {
  const text = await readText(file, context);
  const source = file === "-" ? "<stdin>" : file;
  const result = parsePolicy(text);
  const lines = (list: readonly Violation[]): readonly string[] => list.map((item) => violationLine(item, source));
  const warnings = lines(result.warnings);
  return result.ok
    ? { policy: result.policy, violations: [], warnings, problems: [] }
    : { policy: undefined, violations: lines(result.violations), warnings, problems: result.violations };
}

/** The policy as requests carry it. */
export function policyMessage(policy: Policy): Json {
  return toJson(SandboxPolicySchema, policyToProto(policy)) as Json;
}

async function readText(file: string, context: Context): Promise<string> {
  try {
    if (file === "-") return decodeText(await readStdin(context));
    return readTextFile(resolve(context.surroundings.cwd, file), MAX_FILE_BYTES);
  } catch (error) {
    if (!(error instanceof UnusableFile)) throw error;
    if (error.tooLarge) throw tooLarge(file);
    const what = file === "-" ? "the policy on standard input" : `the policy file ${quote(file)}`;
    throw new CliError(`${what} ${error.message}`, {
      code: "policy_file_unreadable",
      next: error.missing ? "Check the path" : "Name a file of UTF-8 text, or give it with `--policy -` and `< FILE`",
      cause: error,
    });
  }
}

async function readStdin(context: Context): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of context.surroundings.stdin) {
    length += (chunk as Buffer).length;
    if (length > MAX_FILE_BYTES) throw tooLarge("<stdin>");
    chunks.push(Buffer.from(chunk as Buffer));
  }
  return Buffer.concat(chunks);
}

function tooLarge(file: string): CliError {
  return new CliError(`${file} is larger than ${MAX_FILE_BYTES} bytes`, {
    code: "policy_file_too_large",
    next: "A policy has at most 256 KiB",
  });
}

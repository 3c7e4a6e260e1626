import { lstatSync } from "node:fs";
import { realpath } from "node:fs/promises";
import { posix } from "node:path";
import { clone, create, toBinary } from "@bufbuild/protobuf";
import {
  FailureSchema,
  ImagePolicyMissingSchema,
  PolicyUnchangedSchema,
  type StartupConfigPrepared,
  type SupervisorHello,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import {
  FilesystemPolicySchema,
  type SandboxPolicy,
  SandboxPolicySchema,
} from "@openshell/api/generated/sandbox_pb.js";
import { RuntimeError, systemCode } from "@openshell/base";
import { lookUp, readInside } from "@openshell/drivers/local/image/lookup.ts";
import {
  BASELINE_PATHS,
  formatViolation,
  IMAGE_POLICY_PATHS,
  parsePolicy,
  policyFromProto,
  policyToProto,
  type Violation,
} from "@openshell/policy";
import type { ConfigurationProblem } from "./compile.ts";
import { FAILURE_CHARACTERS } from "./results.ts";

/** Of a policy file in an image. It is parsed beside the traffic of other sandboxes, which must not wait for it. */
const IMAGE_POLICY_BYTES = 1024 * 1024;
/** Encoded bytes of one policy, as the gateway takes them. */
const POLICY_BYTES = 256 * 1024;
/** Violations named in one failure; the rest are counted. */
const NAMED_VIOLATIONS = 5;
/** Mounted into every root, whatever the image has there. */
const MOUNTED: readonly string[] = ["/proc", "/dev", "/tmp"];

/** Ids that the agent was given when the sandbox was launched. */
export interface LaunchedIdentity {
  readonly uid: number;
  readonly gid: number;
}

/**
 * What a start asks of the sandbox's root. It looks into the image, from outside: what the agent changed in the sandbox
 * counts as little as where links of the image point to on the host.
 */
export class ImageRoot {
  /** Host folder of the image; empty for a root of the host's system folders. */
  readonly #folder: string;
  readonly #identity: LaunchedIdentity;
  #found: SupervisorHello["imagePolicy"] | undefined;

  constructor(folder: string, identity: LaunchedIdentity) {
    this.#folder = folder;
    this.#identity = identity;
  }

  /** The policy in the image: none, one that cannot be used, or a complete one. Read once. */
  get policy(): SupervisorHello["imagePolicy"] {
    this.#found ??= this.#discover();
    return this.#found;
  }

  /**
   * The candidate with the paths that programs need, as far as the image has them and a policy with network rules does not
   * name them itself. A root of system folders has nothing to add: its base paths are open anyway (compile/landlock.ts).
   */
  prepare(candidate: SandboxPolicy | undefined): StartupConfigPrepared["result"] {
    if (candidate === undefined)
      return failed({ code: "policy_missing", message: "the start-up candidate carries no policy", next: "" });
    const parsed = policyFromProto(candidate, { origin: "effective" });
    if (!parsed.ok) {
      const next = "Correct the policy and set it again";
      return failed({ code: "invalid_policy", message: describe(parsed.violations), next });
    }
    const identity = this.#identityProblem(candidate);
    if (identity !== undefined) return failed(identity);
    const unchanged = { case: "unchanged", value: create(PolicyUnchangedSchema) } as const;
    if (this.#folder === "" || parsed.policy.networkPolicies.size === 0) return unchanged;
    if (lookUp(this.#folder, "/")?.stat.isDirectory() !== true) {
      const message = "the sandbox's image cannot be read";
      return failed({ code: "image_unavailable", message, next: "Check that the image's folder exists" }, true);
    }
    const listed = new Set([...(candidate.filesystem?.readOnly ?? []), ...(candidate.filesystem?.readWrite ?? [])]);
    const missing = (paths: readonly string[]) => paths.filter((path) => !listed.has(path) && this.#exists(path));
    const [readOnly, readWrite] = [missing(BASELINE_PATHS.readOnly), missing(BASELINE_PATHS.readWrite)];
    if (readOnly.length + readWrite.length === 0) return unchanged;
    const policy = clone(SandboxPolicySchema, candidate);
    policy.filesystem ??= create(FilesystemPolicySchema, { includeWorkdir: true });
    policy.filesystem.readOnly.push(...readOnly);
    policy.filesystem.readWrite.push(...readWrite);
    return { case: "policy", value: policy };
  }

  /** A policy that is known only now, as one out of the image is, may ask for other ids than the sandbox was launched with. */
  #identityProblem({ process }: SandboxPolicy): ConfigurationProblem | undefined {
    const { uid, gid } = this.#identity;
    for (const [field, wanted, given] of [
      ["run_as_user", process?.runAsUser ?? "", uid],
      ["run_as_group", process?.runAsGroup ?? "", gid],
    ] as const) {
      if (!/^[0-9]+$/.test(wanted) || Number(wanted) === given) continue;
      const message = `process.${field} is ${wanted}, and the sandbox was launched with ${given}, before its policy was known`;
      return { code: "identity_refused", message, next: "Give the policy when the sandbox is created" };
    }
    return undefined;
  }

  /** Where a path of the root leads, as far as the host's system or the image says; rejects when nowhere. */
  async realPath(path: string): Promise<string> {
    if (this.#folder === "") return realpath(path);
    const found = lookUp(this.#folder, path);
    if (found === undefined) throw new RuntimeError("image_unavailable", `the image has no ${path}`);
    return found.path.slice(this.#folder.length) || "/";
  }

  #exists(path: string): boolean {
    const mounted = MOUNTED.some((folder) => path === folder || path.startsWith(`${folder}/`));
    return mounted || lookUp(this.#folder, path) !== undefined;
  }

  #discover(): SupervisorHello["imagePolicy"] {
    const missing = { case: "missing", value: create(ImagePolicyMissingSchema) } as const;
    if (this.#folder === "") return missing;
    const path = IMAGE_POLICY_PATHS.find((candidate) => isNamed(this.#folder, candidate));
    if (path === undefined) return missing;
    const text = readInside(this.#folder, path, IMAGE_POLICY_BYTES);
    if (text === undefined) return invalid(`${path} is no readable file of at most ${IMAGE_POLICY_BYTES} bytes`);
    const parsed = parsePolicy(text);
    if (!parsed.ok) return invalid(`${path}: ${describe(parsed.violations)}`);
    const value = policyToProto(parsed.policy);
    if (toBinary(SandboxPolicySchema, value).length > POLICY_BYTES)
      return invalid(`${path} is larger than ${POLICY_BYTES} bytes when encoded`);
    return { case: "policy", value };
  }
}

/** Something has that name, be it a link to nowhere: a policy that is meant and cannot be read is not the same as none. */
function isNamed(folder: string, path: string): boolean {
  const parent = lookUp(folder, posix.dirname(path));
  if (parent === undefined) return false;
  try {
    lstatSync(posix.join(parent.path, posix.basename(path)));
    return true;
  } catch (error) {
    return systemCode(error) !== "ENOENT" && systemCode(error) !== "ENOTDIR";
  }
}

function describe(violations: readonly Violation[]): string {
  const named = violations.slice(0, NAMED_VIOLATIONS).map((violation) => formatViolation({ ...violation, next: "" }));
  const more = violations.length - named.length;
  return `${named.join("; ")}${more > 0 ? `; and ${more} more` : ""}`;
}

function invalid(message: string): SupervisorHello["imagePolicy"] {
  const next = "Correct the image, or give the sandbox a policy";
  return { case: "invalid", value: failure({ code: "image_policy_invalid", message, next }, false) };
}

function failed(problem: ConfigurationProblem, retryable = false): StartupConfigPrepared["result"] {
  return { case: "failure", value: failure(problem, retryable) };
}

function failure({ code, message, next }: ConfigurationProblem, retryable: boolean) {
  return create(FailureSchema, { code, message: message.slice(0, FAILURE_CHARACTERS), next, retryable });
}

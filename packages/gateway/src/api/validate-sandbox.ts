import { toBinary } from "@bufbuild/protobuf";
import { type CreateSandboxRequest, SandboxPolicySchema, SandboxRestartPolicy, type SandboxSpec } from "@openshell/api";
import { labelKeyProblem, labelValueProblem } from "@openshell/api/labels.ts";
import { environmentKeyProblem, nameProblem, routableNameProblem, violation } from "@openshell/api/names.ts";
import { Violations } from "@openshell/api/violations.ts";
import { imageRoot } from "../compute/image-root.ts";
import { isolationAnnotationProblem } from "../compute/isolation.ts";
import { resourceLimits } from "../compute/resources.ts";
import { restartsAtAll } from "../compute/restart.ts";
import { isEphemeral, RETENTION_ANNOTATION } from "../compute/runtime-record.ts";
import { localVolumes } from "../compute/volumes.ts";
import { MAX_POLICY_BYTES } from "../policies/rules.ts";

/** Limits of requests that make or run something. Sizes in bytes of UTF-8. */
export const RequestLimit = {
  mapEntries: 128,
  environmentValue: 8_192,
  environmentTotal: 256 * 1024,
  annotationValue: 8_192,
  labels: 64,
  templateString: 1_024,
  templateStruct: 64 * 1024,
  providers: 32,
  commandArguments: 256,
  execArguments: 1_024,
  argument: 32 * 1024,
  argumentsTotal: 256 * 1024,
  execEnvironmentValue: 32 * 1024,
  workdir: 4_096,
  stdin: 4 * 1024 * 1024,
} as const;

/** Everything wrong with a CreateSandbox request that can be said without looking at other resources. */
export function validateCreate(request: CreateSandboxRequest): Violations {
  const found = new Violations();
  if (request.name !== "") found.add(violation("name", routableNameProblem(request.name)));
  checkLabels(request.labels, "labels", found);
  checkAnnotations(request.annotations, "annotations", found);
  if (request.spec === undefined) found.require(false, "spec", "is required; it may be empty");
  else checkSpec(request.spec, found);
  const restarted = request.spec !== undefined && restartsAtAll({ spec: request.spec });
  found.require(
    !(restarted && isEphemeral(request)),
    "spec.restart_policy",
    `cannot be combined with the annotation ${RETENTION_ANNOTATION}=ephemeral, which removes the sandbox when its main process has ended`,
  );
  return found;
}

function checkSpec(spec: SandboxSpec, found: Violations): void {
  found.require(
    spec.logLevel === "",
    "spec.log_level",
    "is not built yet: supervisors log at one level; leave it empty",
  );
  checkEnvironment(spec.environment, "spec.environment", "spec", found);
  if (spec.command.length > 0) checkCommand(spec.command, "spec.command", RequestLimit.commandArguments, found);
  found.require(
    spec.providers.length <= RequestLimit.providers,
    "spec.providers",
    `must have at most ${RequestLimit.providers} entries`,
  );
  for (const [index, name] of spec.providers.entries())
    found.add(violation(`spec.providers[${index}]`, nameProblem(name)));
  found.require(spec.providerAttachmentEpoch === "", "spec.provider_attachment_epoch", "is set by the gateway");
  const policies = Object.values(SandboxRestartPolicy);
  found.require(policies.includes(spec.restartPolicy), "spec.restart_policy", "must be NEVER, ON_FAILURE or ALWAYS");
  const gpu = spec.resourceRequirements?.gpu;
  if (gpu !== undefined) {
    found.require(gpu.count !== 0, "spec.resource_requirements.gpu.count", "must be at least 1");
    found.require(false, "spec.resource_requirements.gpu", "is not supported by the local driver");
  }
  if (spec.policy !== undefined) {
    const bytes = toBinary(SandboxPolicySchema, spec.policy).length;
    found.require(bytes <= MAX_POLICY_BYTES, "spec.policy", `must have at most ${MAX_POLICY_BYTES} bytes when encoded`);
  }
  if (spec.template !== undefined) checkTemplate(spec.template, found);
}

function checkTemplate(template: NonNullable<SandboxSpec["template"]>, found: Violations): void {
  const field = "spec.template";
  found.require(
    template.image === "",
    `${field}.image`,
    "is not supported: this gateway pulls no images; unpack one with `docker export` and name the archive or folder in driver_config.local.root (--from x.tar)",
  );
  found.require(
    template.runtimeClassName === "",
    `${field}.runtime_class_name`,
    "is not supported by the local driver",
  );
  found.require(template.agentSocket === "", `${field}.agent_socket`, "is not supported by the local driver");
  for (const name of ["labels", "annotations"] as const) {
    const none = Object.keys(template[name]).length === 0;
    found.require(none, `${field}.${name}`, `means nothing to the local driver; use ${name} of the sandbox itself`);
  }
  const choice = template.userNamespaces === undefined;
  found.require(choice, `${field}.user_namespaces`, "cannot be chosen with the local driver; leave it out");
  checkEnvironment(template.environment, `${field}.environment`, "spec", found);
  for (const [name, struct] of [
    ["resources", template.resources],
    ["driver_config", template.driverConfig],
  ] as const) {
    const bytes = struct === undefined ? 0 : Buffer.byteLength(JSON.stringify(struct));
    found.require(
      bytes <= RequestLimit.templateStruct,
      `${field}.${name}`,
      `must have at most ${RequestLimit.templateStruct} bytes`,
    );
  }
  for (const found_ of resourceLimits(template.resources).violations) found.add(found_);
  for (const found_ of localVolumes(template.driverConfig).violations) found.add(found_);
  for (const found_ of imageRoot(template.driverConfig).violations) found.add(found_);
}

export function checkLabels(labels: Readonly<Record<string, string>>, field: string, found: Violations): void {
  const entries = Object.entries(labels);
  found.require(entries.length <= RequestLimit.labels, field, `must have at most ${RequestLimit.labels} entries`);
  for (const [key, value] of entries.slice(0, RequestLimit.labels)) {
    found.add(violation(`${field}[${key}]`, labelKeyProblem(key) ?? labelValueProblem(value)));
  }
}

export function checkAnnotations(
  annotations: Readonly<Record<string, string>>,
  field: string,
  found: Violations,
): void {
  const entries = Object.entries(annotations);
  found.require(
    entries.length <= RequestLimit.mapEntries,
    field,
    `must have at most ${RequestLimit.mapEntries} entries`,
  );
  for (const [key, value] of entries.slice(0, RequestLimit.mapEntries)) {
    found.add(violation(`${field}[${key}]`, labelKeyProblem(key)));
    found.add(violation(`${field}[${key}]`, isolationAnnotationProblem(key, value)));
    const fits = Buffer.byteLength(value) <= RequestLimit.annotationValue;
    found.require(fits, `${field}[${key}]`, `must have at most ${RequestLimit.annotationValue} bytes`);
  }
}

/** Names, sizes and characters of environment variables. Values are never quoted: they may be secrets. */
export function checkEnvironment(
  environment: Readonly<Record<string, string>>,
  field: string,
  use: "spec" | "exec",
  found: Violations,
): void {
  const entries = Object.entries(environment);
  found.require(
    entries.length <= RequestLimit.mapEntries,
    field,
    `must have at most ${RequestLimit.mapEntries} entries`,
  );
  const limit = use === "exec" ? RequestLimit.execEnvironmentValue : RequestLimit.environmentValue;
  let total = 0;
  for (const [key, value] of entries.slice(0, RequestLimit.mapEntries)) {
    found.add(violation(`${field}[${key}]`, environmentKeyProblem(key, use)));
    const bytes = Buffer.byteLength(value);
    total += key.length + bytes;
    found.require(bytes <= limit, `${field}[${key}]`, `must have at most ${limit} bytes`);
    found.require(!/[\0\r\n]/.test(value), `${field}[${key}]`, "must not contain NUL or line ends");
  }
  found.require(
    total <= RequestLimit.environmentTotal,
    field,
    `must have at most ${RequestLimit.environmentTotal} bytes in all`,
  );
}

/** An argument vector that is not empty. */
export function checkCommand(command: readonly string[], field: string, limit: number, found: Violations): void {
  found.require(command.length > 0 && command[0] !== "", field, "must name a program");
  found.require(command.length <= limit, field, `must have at most ${limit} arguments`);
  let total = 0;
  for (const [index, argument] of command.slice(0, limit).entries()) {
    const bytes = Buffer.byteLength(argument);
    total += bytes + 1;
    found.require(
      bytes <= RequestLimit.argument,
      `${field}[${index}]`,
      `must have at most ${RequestLimit.argument} bytes`,
    );
    found.require(!argument.includes("\0"), `${field}[${index}]`, "must not contain NUL");
  }
  found.require(
    total <= RequestLimit.argumentsTotal,
    field,
    `must have at most ${RequestLimit.argumentsTotal} bytes in all`,
  );
}

import { existsSync, realpathSync, statSync } from "node:fs";
import { resolve } from "node:path";
import { systemCode } from "@openshell/base/errors.ts";
import type { Flag } from "../args.ts";
import { type Context, pairs } from "../context.ts";
import { quote, usageError } from "../errors.ts";
import type { Json } from "../transport/unary.ts";
import { checkVariables } from "./environment.ts";
import { MINIMUM_ISOLATION_ANNOTATION } from "./isolation.ts";

/** Options of everything that makes a sandbox. */
export const WORKLOAD_FLAGS: readonly Flag[] = [
  { long: "policy", value: "FILE", env: "OPENSHELL_SANDBOX_POLICY", help: "policy file, YAML or JSON" },
  {
    long: "from",
    value: "ROOT",
    help: "run on a root file system instead of this machine's programs: a folder, .tar or .tar.gz (docker export, docker save)",
  },
  {
    long: "provider",
    value: "NAME",
    names: "providers",
    many: true,
    help: "let the sandbox use a provider's credentials",
  },
  {
    long: "volume",
    value: "SRC:DST[:ro]",
    many: true,
    help: "mount a folder or file of this machine (its own gateway only); git hooks, git configuration and start-up files of editors and shells stay read-only unless :rw-all",
  },
  { long: "env", value: "KEY=VALUE", many: true, help: "variable of the main process" },
  { long: "label", value: "KEY=VALUE", many: true, help: "label of the sandbox" },
  { long: "cpu", value: "QUANTITY", help: "CPU limit, such as 500m or 2" },
  { long: "memory", value: "QUANTITY", help: "memory limit, such as 512Mi or 2Gi" },
  {
    long: "minimum-isolation",
    value: "LAYERS",
    help: "do not start with less: isolation layers separated by commas, `confined` or `complete` (sandbox get lists them)",
  },
  { long: "tty", help: "give the main process a terminal" },
  { long: "no-tty", help: "give it pipes (default: a terminal when this is one)" },
];

/** One `--volume`, source made absolute. */
export interface Volume {
  readonly source: string;
  readonly target: string;
  readonly access: string;
}

/** Parses `SRC:DST[:ro]`; `~/` and relative sources are this shell's. Throws usage errors. */
export function parseVolume(text: string, cwd: string, home: string): Volume {
  const parts = text.split(":");
  const [source = "", target = "", access = "rw"] = parts;
  const form = "Write --volume SRC:DST or --volume SRC:DST:ro; paths cannot contain colons";
  if (source === "" || target === "" || parts.length > 3)
    throw usageError(`--volume ${quote(text)} is not SRC:DST[:ro]`, form);
  if (!["ro", "rw", "rw-all"].includes(access)) {
    throw usageError(`--volume ${quote(text)}: ${quote(access)} is no access`, form);
  }
  if (!target.startsWith("/")) {
    throw usageError(
      `--volume ${quote(text)}: the target must be an absolute path`,
      `Write --volume ${source}:/${target}`,
    );
  }
  const expanded = source === "~" || source.startsWith("~/") ? home + source.slice(1) : source;
  return { source: resolve(cwd, expanded), target, access };
}

export function volumesOf(context: Context): readonly Volume[] {
  const { cwd, home } = context.surroundings;
  return context.args.values("volume").map((text) => parseVolume(text, cwd, home));
}

const CPU = /^(?:[1-9]\d*m|\d+(?:\.\d+)?)$/;
const MEMORY = /^[1-9]\d*(?:[KMGTPE]i?)?$/;

/** `CreateSandboxRequest` without name and command, from {@link WORKLOAD_FLAGS}. */
export async function workloadRequest(
  context: Context,
  volumes: readonly Volume[],
): Promise<{ request: Json; spec: Json }> {
  const { args } = context;
  const environment = pairs(args.values("env"), "env");
  checkVariables(Object.keys(environment));
  const limits: Record<string, string> = {};
  const cpu = args.value("cpu");
  if (cpu !== undefined) {
    if (!CPU.test(cpu) || Number(cpu) === 0)
      throw usageError(`--cpu ${quote(cpu)} is no quantity`, "Write 500m, 0.5 or 2");
    limits["cpu"] = cpu;
  }
  const memory = args.value("memory");
  if (memory !== undefined) {
    if (!MEMORY.test(memory)) throw usageError(`--memory ${quote(memory)} is no quantity`, "Write 512Mi or 2Gi");
    limits["memory"] = memory;
  }
  if (volumes.length > 0 && context.target.kind !== "embedded") {
    throw usageError(
      "--volume names folders of this machine, and the gateway is another one",
      "Leave out --volume or --gateway",
    );
  }
  const list = volumes.map(({ source, target, access }) => `${source}:${target}${access === "rw" ? "" : `:${access}`}`);
  const from = args.value("from");
  const policy = args.value("policy");
  const policyMessage = policy === undefined ? undefined : await policyJson(policy, context);
  const labels = pairs(args.values("label"), "label");
  const root = from === undefined ? undefined : rootPath(context, from);
  const local = {
    // Last of all that can be wrong here: an archive may take minutes to copy.
    ...(root === undefined ? {} : await rootConfig(context, root)),
    ...(list.length > 0 ? { volumes: list } : {}),
  };
  const template = {
    ...(from !== undefined && root === undefined ? { image: from } : {}),
    ...(Object.keys(limits).length > 0 ? { resources: { limits } } : {}),
    ...(Object.keys(local).length > 0 ? { driverConfig: { local } } : {}),
  };
  const spec = {
    ...(Object.keys(environment).length > 0 ? { environment } : {}),
    ...(Object.keys(template).length > 0 ? { template } : {}),
    ...(policyMessage === undefined ? {} : { policy: policyMessage }),
    ...(args.values("provider").length > 0 ? { providers: args.values("provider") } : {}),
  };
  const minimum = args.value("minimum-isolation");
  return {
    request: {
      workspaceScope: context.scope,
      ...(Object.keys(labels).length > 0 ? { labels } : {}),
      ...(minimum === undefined ? {} : { annotations: { [MINIMUM_ISOLATION_ANNOTATION]: minimum } }),
    },
    spec,
  };
}

/** The absolute path behind `--from`, or undefined when it is the name of an image, which the gateway then judges. */
function rootPath(context: Context, from: string): string | undefined {
  const { cwd, home } = context.surroundings;
  const expanded = from === "~" || from.startsWith("~/") ? home + from.slice(1) : from;
  const path = resolve(cwd, expanded);
  const named = /^(?:\.{0,2}\/|\.{1,2}$|~)|\.(?:tar|tar\.gz|tgz)$/.test(from);
  if (!named && !existsSync(path)) return undefined;
  try {
    statSync(path);
  } catch (error) {
    if (["EACCES", "EPERM"].includes(systemCode(error) ?? "")) {
      throw usageError(`--from ${quote(from)} may not be reached by this user`, "Open the folders above it: chmod u+x");
    }
    throw usageError(`--from ${quote(from)} does not exist`, "Name a folder, a .tar or a .tar.gz that exists");
  }
  if (context.target.kind !== "embedded" && !statSync(path).isFile()) {
    throw usageError(
      `--from ${quote(from)} is a folder of this machine, and the gateway is reached over the network`,
      `Pack it, and name the archive: tar -C ${quote(from)} -cf root.tar .`,
    );
  }
  // Links are the caller's to follow: the gateway takes none, since they could change between check and use.
  return realpathSync(path);
}

/** How the gateway is told of a root: by path where it knows the caller as the owner of this machine's files, else by what it is handed. */
async function rootConfig(context: Context, path: string): Promise<Json> {
  if (context.target.kind === "embedded") return { root: path };
  const { stageArchive } = await import("./staging.ts");
  return { rootfs_tar_staging_token: await stageArchive(context, path) };
}

/** The policy library and protobuf are loaded only here. */
async function policyJson(file: string, context: Context): Promise<Json> {
  const { readPolicyFile, policyMessage } = await import("../policy/file.ts");
  return policyMessage((await readPolicyFile(file, context)).policy);
}

/** A root file system need not have bash. */
export const LOGIN_SHELL: readonly string[] = [
  "/bin/sh",
  "-c",
  "if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l",
];

/** A terminal inside when both ends are one here, for a login shell when its input is one; unless told otherwise. */
export function wantsTty({ args, surroundings: { stdin, stdout } }: Context): boolean {
  return args.either("tty") ?? (stdin.isTTY === true && (stdout.isTTY === true || args.command.length === 0));
}

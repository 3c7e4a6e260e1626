import type { Restrictions } from "../../boundary.ts";
import { compileLandlock, type FilesystemRules, MAXIMUM_LANDLOCK_ABI } from "./landlock.ts";
import { agentRlimits } from "./rlimits.ts";
import { compileSeccomp, filterArchitecture } from "./seccomp.ts";

/** Files that an agent makes are readable by its owner's group and others, as on any machine. */
const AGENT_UMASK = 0o022;

/** What decides the restrictions of a sandbox's processes. */
export interface RestrictionInput {
  readonly filesystem: FilesystemRules;
  /** Limit of processes; undefined for the default. */
  readonly pids?: number | undefined;
  /** Node's `process.arch` of the machine that runs the sandbox. */
  readonly arch: string;
  /** Landlock ABI if known, 0 for none. By default the newest known here: init leaves out what its kernel lacks and reports it. */
  readonly landlockAbi?: number;
}

/** Everything that binds each agent process, for `Boundary.confirm`. Throws on a machine that no filter exists for: nothing runs unfiltered. */
export function compileRestrictions(input: RestrictionInput): Restrictions {
  const architecture = filterArchitecture(input.arch);
  if (architecture === undefined) throw new RangeError(`no seccomp filter exists for ${input.arch}`);
  return {
    landlock: compileLandlock(input.filesystem, input.landlockAbi ?? MAXIMUM_LANDLOCK_ABI),
    seccomp: compileSeccomp(architecture),
    rlimits: agentRlimits(input.pids),
    umask: AGENT_UMASK,
  };
}

import type { FieldViolation } from "./violations.ts";

/** Longest name of a workspace, sandbox or service. Three of them and two separators make one DNS label of a service host name (63). */
export const MAX_ROUTABLE_NAME = 19;
/** Longest name of anything else: providers, profiles, templates. */
export const MAX_NAME = 253;
/** Longest name of an environment variable. */
export const MAX_ENVIRONMENT_KEY = 256;

const ROUTABLE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/;
const ENVIRONMENT_KEY = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** Reserved for variables that the supervisor sets. */
const RESERVED_PREFIX = "OPENSHELL_";
/** The one reserved variable that an exec may carry: the Python SDK sends a pickled function in it. */
const EXEC_EXCEPTION = "OPENSHELL_PYFUNC_B64";

/** What is wrong with the name of a workspace, sandbox or service (an RFC 1123 label without `--`, which separates names in host names). */
export function routableNameProblem(name: string): string | undefined {
  if (name === "") return "must not be empty";
  if (name.length > MAX_ROUTABLE_NAME) return `must have at most ${MAX_ROUTABLE_NAME} characters`;
  if (!ROUTABLE.test(name)) return 'must consist of "a"-"z", "0"-"9" and single "-" between them';
  return undefined;
}

/** What is wrong with any other resource name: 1–253 characters without control characters, spaces at the ends, or slashes. */
export function nameProblem(name: string): string | undefined {
  if (name === "") return "must not be empty";
  if (name.length > MAX_NAME) return `must have at most ${MAX_NAME} characters`;
  if (/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}/\\]/u.test(name)) return "must not contain control characters or slashes";
  if (name.trim() !== name) return "must not begin or end with a space";
  return undefined;
}

/** What is wrong with the name of an environment variable. `exec` allows the variable that the Python SDK uses to send a function. */
export function environmentKeyProblem(key: string, use: "spec" | "exec" = "spec"): string | undefined {
  if (key.length > MAX_ENVIRONMENT_KEY) return `must have at most ${MAX_ENVIRONMENT_KEY} characters`;
  if (!ENVIRONMENT_KEY.test(key))
    return "must begin with a letter or underscore and contain only letters, digits and underscores";
  if (key.startsWith(RESERVED_PREFIX) && !(use === "exec" && key === EXEC_EXCEPTION)) {
    return `must not begin with ${RESERVED_PREFIX}, which is reserved`;
  }
  return undefined;
}

/** A problem as the violation of a field; undefined stays undefined. */
export function violation(field: string, problem: string | undefined): FieldViolation | undefined {
  return problem === undefined ? undefined : { field, description: problem };
}

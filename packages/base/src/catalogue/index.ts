/**
 * Every stable code of the project, what it means, and what to do. The types of errors are made from these tables: a code that is not
 * here cannot be thrown. docs/errors.md is made from them, too. Nothing here knows any other part.
 */
export * from "./api.ts";
export * from "./calls.ts";
export * from "./command-line.ts";
export * from "./conditions.ts";
export * from "./denials.ts";
export * from "./exits.ts";
export type { Meaning } from "./meaning.ts";
export * from "./policies.ts";
export * from "./runtime.ts";

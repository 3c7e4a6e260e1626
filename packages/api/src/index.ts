/**
 * The public wire of OpenShell: generated messages, enums and the service, plus the rules that every server and client of it shares.
 * The internal protocols (gateway ↔ supervisor) are imported by path from `@openshell/api/generated/openshell/…`.
 */

export * from "./canonical.ts";
export * from "./compatibility.ts";
export * from "./compatibility-fields.ts";
export * from "./decode-error.ts";
export * from "./error-boundary.ts";
export * from "./error-details.ts";
export * from "./errors.ts";
export * from "./generated/datamodel_pb.js";
export * from "./generated/openshell_pb.js";
export * from "./generated/options_pb.js";
export * from "./generated/sandbox_pb.js";
export * from "./labels.ts";
export * from "./mac.ts";
export * from "./names.ts";
export * from "./page-token.ts";
export * from "./redact.ts";
export * from "./request-id.ts";
export * from "./selectors.ts";
export * from "./times.ts";
export * from "./unimplemented.ts";
export * from "./violations.ts";

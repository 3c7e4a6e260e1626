/**
 * The public wire of OpenShell: generated messages, enums and the service, plus the rules that every server and client of it shares.
 * The internal protocols (gateway ↔ supervisor) are imported by path from `@openshell/api/generated/openshell/…`.
 */
export * from "./generated/datamodel_pb.js";
export * from "./generated/openshell_pb.js";
export * from "./generated/options_pb.js";
export * from "./generated/sandbox_pb.js";

export * from "./atomic-file.ts";
export * from "./clock.ts";
export * from "./errors.ts";
export * from "./escape.ts";
export * from "./log-fields.ts";
export * from "./paths.ts";
export * from "./process-identity.ts";
export * from "./queue.ts";

/** Security events: typed facts → OCSF 1.8.0 JSON lines and one shorthand line each. Pure but for writer and files. */
export * from "./enums.ts";
export * from "./event-log.ts";
export * from "./events.ts";
export * from "./fold.ts";
export * from "./record.ts";
export * from "./shorthand.ts";
export * from "./text.ts";
export * from "./writer.ts";

export type * from "./boundary.ts";

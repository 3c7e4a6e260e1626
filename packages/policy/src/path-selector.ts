/**
 * The `path` of an endpoint: which requests of a host this endpoint is about. Unlike in rules, `*` crosses `/` here, and
 * `/v1/**` includes `/v1` itself. A malformed pattern selects only the path that is written exactly so.
 */
import { compileGlob } from "./globs.ts";

export interface PathSelector {
  /** Normalised source: empty for all paths. */
  readonly source: string;
  /** Characters other than `*`; the endpoint with the highest number governs a request. */
  readonly specificity: number;
  matches(path: string): boolean;
}

export function normalisePathSelector(path: string): string {
  return path === "**" || path === "/**" ? "" : path;
}

export function pathSpecificity(path: string): number {
  return normalisePathSelector(path).replaceAll("*", "").length;
}

export function compilePathSelector(path: string): PathSelector {
  const source = normalisePathSelector(path);
  const specificity = pathSpecificity(path);
  if (source === "") return { source, specificity, matches: () => true };
  const whole = compileGlob(source, "");
  if ("error" in whole) return { source, specificity, matches: (candidate) => candidate === source };
  if (!source.endsWith("/**")) return { source, specificity, matches: (candidate) => whole.matches(candidate) };
  const prefix = compileGlob(source.slice(0, -3), "");
  return {
    source,
    specificity,
    matches: (candidate) => whole.matches(candidate) || (!("error" in prefix) && prefix.matches(candidate)),
  };
}

import type { Style } from "../output/style.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";

/** Annotations in which isolation travels: the public messages have no field for it. */
export const MINIMUM_ISOLATION_ANNOTATION = "openshell.dev/minimum-isolation";
export const ISOLATION_ANNOTATION = "openshell.dev/isolation";

export interface IsolationView {
  readonly network_capture: string;
  readonly layers: readonly {
    readonly name: string;
    readonly enforced: boolean;
    /** A canary from inside was refused when the sandbox started. */
    readonly tested: boolean;
    readonly detail: string;
  }[];
}

/** The report among a sandbox's annotations; undefined where there is none that this build can read. */
export function isolationView(annotations: Readonly<Record<string, string>>): IsolationView | undefined {
  try {
    const report = JSON.parse(annotations[ISOLATION_ANNOTATION] ?? "") as Json;
    const layers = Array.isArray(report["layers"]) ? (report["layers"] as Json[]) : [];
    return {
      network_capture: String(report["network_capture"] ?? ""),
      layers: layers.map((layer) => ({
        name: String(layer["name"] ?? ""),
        enforced: layer["enforced"] === true,
        tested: layer["tested"] === true,
        detail: String(layer["detail"] ?? ""),
      })),
    };
  } catch {
    return undefined;
  }
}

/** A line a layer: those that are not in force first. */
export function isolationLines(view: IsolationView, style: Style): [string, string][] {
  const sorted = view.layers.toSorted((a, b) => Number(a.enforced) - Number(b.enforced));
  return sorted.map(({ name, enforced, tested, detail }) => {
    const state = enforced ? (tested ? "in force, tested" : "in force") : "not in force";
    const text = detail === "" ? state : `${state}: ${cell(detail)}`;
    return [`  ${cell(name)}`, enforced ? text : style.yellow(text)];
  });
}

/** What the layers of several sandboxes come to, in one line. */
export function isolationSummary(views: readonly IsolationView[]): string | undefined {
  if (views.length === 0) return undefined;
  const missing = new Set(
    views.flatMap(({ layers }) => layers.filter(({ enforced }) => !enforced).map(({ name }) => name)),
  );
  const count = views.length === 1 ? "1 sandbox" : `${views.length} sandboxes`;
  return missing.size === 0
    ? `complete in ${count}`
    : `not in force in some of ${count}: ${[...missing].map(cell).join(", ")}`;
}

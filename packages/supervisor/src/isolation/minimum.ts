import { RuntimeError } from "@openshell/base";
import type { IsolationLayer } from "@openshell/boundary";
import { ISOLATION_LAYERS, ISOLATION_LEVELS } from "@openshell/boundary/isolation-layers.ts";
import { MINIMUM_LANDLOCK_ABI } from "@openshell/boundary/local/compile/landlock.ts";
import type { Breach } from "./self-test.ts";

/** Layers that a minimum demands and that are not in force, each with the reason. */
export function missingLayers(
  minimum: readonly string[],
  layers: readonly IsolationLayer[],
): readonly { readonly name: string; readonly why: string }[] {
  const demanded = minimum.flatMap((entry) =>
    entry === "complete" ? layers.map(({ name }) => name) : (ISOLATION_LEVELS[entry] ?? [entry]),
  );
  return [...new Set(demanded)].flatMap((name) => {
    const layer = layers.find((candidate) => candidate.name === name);
    if (layer?.enforced === true) return [];
    return [{ name, why: layer === undefined ? "this sandbox has no such layer" : layer.detail || "no reason known" }];
  });
}

/** Nothing is started below the minimum. The error names each missing layer, why it is missing and what to do. */
export function belowMinimum(missing: ReturnType<typeof missingLayers>): RuntimeError {
  const names = missing.map(({ name, why }) => `${name} (${why})`).join(", ");
  const steps = [...new Set(missing.flatMap(({ name }) => ISOLATION_LAYERS[name]?.next ?? []))];
  return new RuntimeError("isolation_below_minimum", `the isolation demanded is not in force here: ${names}`, {
    next: `${steps.join("; ")}${steps.length > 0 ? "; or demand less" : "Demand less"}`,
  });
}

/** A layer that claims to be in force and is not: whatever else it claims is not believed either. */
export function breached(breaches: readonly Breach[]): RuntimeError {
  const found = breaches.map(({ layer, what }) => `${layer}: ${what}`).join("; ");
  return new RuntimeError("isolation_breached", `the isolation self-test got through: ${found}`, {
    next: "Do not use this machine for sandboxes; report it with the kernel's version and how the gateway runs",
  });
}

/** Landlock that can be had but does not protect counts as none: below ABI 3 a file that may only be read can be emptied. */
export function withUsableLandlock(layers: readonly IsolationLayer[]): readonly IsolationLayer[] {
  return layers.map((layer) => {
    const abi = layer.name === "landlock" ? /^abi=(\d+)/.exec(layer.detail)?.[1] : undefined;
    if (abi === undefined || !layer.enforced || Number(abi) >= MINIMUM_LANDLOCK_ABI) return layer;
    const detail = `${layer.detail}: from ABI ${MINIMUM_LANDLOCK_ABI} on a file that may only be read cannot be emptied`;
    return { ...layer, enforced: false, detail };
  });
}

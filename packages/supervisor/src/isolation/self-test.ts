import type { Boundary, IsolationLayer } from "@openshell/boundary";
import { type CanaryFacts, canaries } from "./canaries.ts";
import { openWitness, type Witness } from "./witness.ts";

/** A layer of the report. `tested`: a canary was refused that only this layer stops, and none got through. */
export interface TestedLayer extends IsolationLayer {
  readonly tested: boolean;
}

export interface Breach {
  readonly layer: string;
  /** What got through. */
  readonly what: string;
}

export interface SelfTestResult {
  readonly layers: readonly TestedLayer[];
  readonly breaches: readonly Breach[];
}

export interface SelfTestDeps {
  readonly boundary: Pick<Boundary, "probe">;
  readonly facts: Omit<CanaryFacts, "witness">;
  /** For tests. */
  readonly openWitness?: () => Promise<Witness>;
}

/**
 * Tries every claimed layer from inside, as the agent, before anything of the agent's runs (docs/architecture/isolation.md).
 * Throws when the canaries cannot be tried: what is not known to hold does not count as holding.
 */
export async function selfTest({ boundary, facts, ...deps }: SelfTestDeps): Promise<SelfTestResult> {
  await using witness = await (deps.openWitness ?? openWitness)();
  const list = canaries({ ...facts, witness });
  const answers = list.length === 0 ? [] : await boundary.probe(list.map(({ attempt }) => attempt));
  const breaches: Breach[] = [];
  const held = new Set<string>();
  for (const [index, { layer, what, judge }] of list.entries()) {
    const verdict = judge(answers[index]!);
    if (verdict === "held") held.add(layer);
    if (verdict === "through") breaches.push({ layer, what });
  }
  // Refused is refused. A connection that was made came out only if the host's listener has seen one.
  const connected = list.some(
    ({ attempt }, index) => attempt === `tcp 127.0.0.1 ${witness.port}` && answers[index] === 0n,
  );
  if (connected && (await witness.reached())) {
    breaches.push({ layer: "network_capture", what: "a listener of the host was reached" });
  }
  const broken = new Set(breaches.map(({ layer }) => layer));
  const layers = facts.layers.map((layer) => ({
    ...layer,
    enforced: layer.enforced && !broken.has(layer.name),
    tested: held.has(layer.name) && !broken.has(layer.name),
    detail: broken.has(layer.name)
      ? breaches
          .filter(({ layer: name }) => name === layer.name)
          .map(({ what }) => what)
          .join(", ")
      : layer.detail,
  }));
  return { layers, breaches };
}

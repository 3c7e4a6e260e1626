import type { PolicyProblem } from "@openshell/base/catalogue/policies.ts";
/**
 * Host patterns of endpoints: an exact name or address; `*` inside or as the first label; `*` as a whole later label;
 * `**` as the whole first label, for one or more labels. Case does not count. A pattern never covers an address.
 */
import { type Glob, globOrNothing, hasWildcard } from "./globs.ts";
import { parseIp } from "./ip.ts";

export function isHostPattern(host: string): boolean {
  return host.includes("*");
}

/** Why a host is no valid selector, as a violation code with the rest of the sentence, or undefined. */
export function hostProblem(host: string): { readonly code: PolicyProblem; readonly message: string } | undefined {
  if (!isHostPattern(host)) return undefined;
  const labels = host.split(".");
  const first = labels[0] as string;
  if (host === "*" || host === "**") {
    return { code: "invalid_host_wildcard", message: `host wildcard '${host}' matches every host` };
  }
  if (labels.length <= 2 && (first === "*" || first === "**")) {
    return { code: "tld_wildcard", message: `host wildcard '${host}' covers a whole top-level domain` };
  }
  if (first.includes("**") && first !== "**") {
    return { code: "invalid_host_wildcard", message: `host wildcard '${host}': '**' must be the whole first label` };
  }
  if (labels.length <= 2) {
    return { code: "tld_wildcard", message: `host wildcard '${host}' needs at least three labels` };
  }
  for (const label of labels.slice(1)) {
    if (label.includes("*") && label !== "*") {
      return {
        code: "invalid_host_wildcard",
        message: `host wildcard '${host}': after the first label '*' must be a whole label`,
      };
    }
  }
  return undefined;
}

/** A DNS name of ASCII labels (underscore admitted, as in the wild), 253 characters at most. */
export function isDnsName(host: string): boolean {
  return (
    host.length <= 253 && host.split(".").every((label) => /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/i.test(label))
  );
}

/** Something the data path may have been asked for: a name of sane characters or an address. */
export function isSaneHost(host: string): boolean {
  return host.length > 0 && host.length <= 255 && /^[a-z0-9._:-]+$/.test(host);
}

const MAYBE_ADDRESS = /^[\d.]+$|:/;

type LabelPattern = { readonly glob: Glob; readonly node: HostNode };

interface HostNode {
  readonly literal: Map<string, HostNode>;
  any: HostNode | undefined;
  readonly partial: Map<string, LabelPattern>;
  /** Endpoints of patterns that end here. */
  readonly ids: number[];
  /** Endpoints of `**.<this suffix>`. */
  readonly deepIds: number[];
}

const newNode = (): HostNode => ({ literal: new Map(), any: undefined, partial: new Map(), ids: [], deepIds: [] });

/** Wildcard patterns as a trie of labels from the right: the cost follows the labels of the host, not the patterns. */
export class HostTrie {
  readonly #root = newNode();

  add(pattern: string, id: number): void {
    let node = this.#root;
    const labels = pattern.toLowerCase().split(".");
    for (let at = labels.length - 1; at >= 0; at -= 1) {
      const label = labels[at] as string;
      if (at === 0 && label === "**") {
        node.deepIds.push(id);
        return;
      }
      if (label === "*") {
        node.any ??= newNode();
        node = node.any;
      } else if (hasWildcard(label)) {
        let partial = node.partial.get(label);
        if (partial === undefined) {
          partial = { glob: globOrNothing(label, "."), node: newNode() };
          node.partial.set(label, partial);
        }
        node = partial.node;
      } else {
        let child = node.literal.get(label);
        if (child === undefined) {
          child = newNode();
          node.literal.set(label, child);
        }
        node = child;
      }
    }
    node.ids.push(id);
  }

  /** Ids of every pattern that covers `host` (lower case), in no particular order. Addresses are covered by none. */
  find(host: string): number[] {
    const found: number[] = [];
    if (MAYBE_ADDRESS.test(host) && parseIp(host) !== undefined) return found;
    const labels = host.split(".");
    let nodes: HostNode[] = [this.#root];
    for (let at = labels.length - 1; at >= 0 && nodes.length > 0; at -= 1) {
      const label = labels[at] as string;
      const next: HostNode[] = [];
      for (const node of nodes) {
        for (const id of node.deepIds) found.push(id);
        const child = node.literal.get(label);
        if (child !== undefined) next.push(child);
        if (node.any !== undefined && label !== "") next.push(node.any);
        for (const partial of node.partial.values()) if (partial.glob.matches(label)) next.push(partial.node);
      }
      nodes = next;
    }
    for (const node of nodes) for (const id of node.ids) found.push(id);
    return found;
  }
}

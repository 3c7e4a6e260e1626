/**
 * What one process may ask of one host and port: the endpoints that matched, with their request rules merged so that a
 * request is judged in one walk. Built when the first request arrives, shared by all connections with the same matches.
 */
import type { CompiledEndpoint } from "./compiled-endpoint.ts";
import type { DenialCode, RequestAllowed, RequestDecision, RequestQuery } from "./decision.ts";
import { escapeText } from "./escape-text.ts";
import { PolicyLimit } from "./limits.ts";
import { effectiveAllowRules } from "./presets.ts";
import { RequestIndex } from "./request-index.ts";

/** Endpoints with the same selector. */
interface Group {
  readonly selector: CompiledEndpoint["selector"];
  /** Smallest id first. */
  readonly endpoints: CompiledEndpoint[];
  readonly allow: RequestIndex;
  readonly deny: RequestIndex;
  /** Of the group's own endpoints, for when it governs alone. */
  terms: Terms | undefined;
}

/** What the endpoints that govern a request say about it, beside their rules. */
interface Terms {
  /** Smallest id. */
  readonly governor: CompiledEndpoint;
  readonly unsupported: CompiledEndpoint | undefined;
  readonly encodedSlash: boolean;
  readonly enforced: boolean;
  readonly provider: string | undefined;
  readonly bodyRewrite: boolean;
}

export class Grant {
  /** The compiled policy it belongs to. */
  readonly owner: object;
  /** Matching endpoints, smallest id first; never empty. */
  readonly endpoints: readonly CompiledEndpoint[];
  readonly inspected: boolean;
  #groups: readonly Group[] | undefined;
  /** When nothing is judged. */
  #terms: Terms | undefined;
  /** Position = id of a rule in the indexes; ordered by endpoint. */
  readonly #ruleOwners: CompiledEndpoint[] = [];

  constructor(owner: object, endpoints: readonly CompiledEndpoint[]) {
    this.owner = owner;
    this.endpoints = endpoints;
    this.inspected = endpoints.some((endpoint) => endpoint.inspected);
  }

  decide(query: RequestQuery): RequestDecision {
    const first = this.endpoints[0] as CompiledEndpoint;
    if (!isSaneRequest(query)) {
      return deny("invalid_query", "request is malformed", "Send a canonical request target", first);
    }
    if (!this.inspected) {
      this.#terms ??= termsFrom(this.endpoints);
      return allow(first, this.#terms, "");
    }

    this.#groups ??= this.#build();
    const method = query.method.toUpperCase();
    const groups = this.#groups.filter((group) => group.selector.matches(query.path));
    const top = groups[0];
    if (top === undefined) {
      return deny(
        "path_not_matched",
        `${what(method, query)} did not match an L7 endpoint path`,
        `Add an endpoint for ${first.source.host} whose path covers ${escapeText(query.path)}, or widen 'path' of an existing one`,
        undefined,
        first.rule.key,
      );
    }
    const terms = termsOf(groups, top);
    const { governor, unsupported } = terms;
    if (unsupported !== undefined) {
      return deny(
        "unsupported_protocol",
        `${unsupported.unsupported} is not supported by this release`,
        "Use protocol: rest without signing where that is enough, or leave the endpoint out",
        unsupported,
      );
    }
    if (query.encodedSlash && !terms.encodedSlash) {
      return deny(
        "encoded_slash",
        "request-target contains an encoded '/' (%2F)",
        "Set allow_encoded_slash: true on the endpoint if its paths need it",
        governor,
      );
    }

    const segments = query.path.split("/");
    const denied = smallest(groups, (group) => group.deny.find(method, segments, query.query));
    if (denied >= 0) {
      const endpoint = this.#ruleOwners[denied] as CompiledEndpoint;
      const reason = `${what(method, query)} blocked by deny rule`;
      if (!terms.enforced) return allow(governor, terms, reason);
      return deny("deny_rule", reason, "Remove or narrow the matching entry of deny_rules", endpoint);
    }
    const allowed = smallest(groups, (group) => group.allow.find(method, segments, query.query));
    if (allowed >= 0) return allow(this.#ruleOwners[allowed] as CompiledEndpoint, terms, "");
    const reason = `${what(method, query)} not permitted by policy`;
    if (!terms.enforced) return allow(governor, terms, reason);
    const rule = `- allow: {method: ${escapeText(method, 32)}, path: "${escapeText(query.path)}"}`;
    return deny("not_permitted", reason, `Add to the endpoint's rules: ${rule}`, governor);
  }

  #build(): readonly Group[] {
    const groups = new Map<string, Group>();
    for (const endpoint of this.endpoints) {
      // Beside endpoints that judge requests, one that passes bytes on contributes nothing.
      if (!endpoint.inspected) continue;
      const { source, selector } = endpoint;
      let group = groups.get(selector.source);
      if (group === undefined) {
        group = {
          selector,
          endpoints: [],
          allow: new RequestIndex("all"),
          deny: new RequestIndex("any"),
          terms: undefined,
        };
        groups.set(selector.source, group);
      }
      group.endpoints.push(endpoint);
      const permitted =
        source.protocol === ""
          ? [{ method: "*", path: "**", query: new Map() }]
          : source.protocol === "rest"
            ? effectiveAllowRules(source)
            : [];
      for (const rule of permitted) group.allow.add(rule, this.#ruleOwners.push(endpoint) - 1);
      // A deny rule of any protocol counts when it speaks of method and path: denying more is safe.
      for (const rule of source.denyRules) group.deny.add(rule, this.#ruleOwners.push(endpoint) - 1);
    }
    return [...groups.values()].sort(
      (a, b) =>
        b.selector.specificity - a.selector.specificity ||
        (a.endpoints[0] as CompiledEndpoint).id - (b.endpoints[0] as CompiledEndpoint).id,
    );
  }
}

function smallest(groups: readonly Group[], find: (group: Group) => number): number {
  let best = -1;
  for (const group of groups) {
    const found = find(group);
    if (found >= 0 && (best < 0 || found < best)) best = found;
  }
  return best;
}

/** Groups of equal weight govern together; contradictions between them are refused when a policy is set. */
function termsOf(groups: readonly Group[], top: Group): Terms {
  if (groups[1]?.selector.specificity !== top.selector.specificity) {
    top.terms ??= termsFrom(top.endpoints);
    return top.terms;
  }
  const governing = groups.filter((group) => group.selector.specificity === top.selector.specificity);
  return termsFrom(governing.flatMap((group) => group.endpoints).sort((a, b) => a.id - b.id));
}

function termsFrom(endpoints: readonly CompiledEndpoint[]): Terms {
  const bound = endpoints.find((endpoint) => endpoint.source.credentialProvider !== "");
  return {
    governor: endpoints[0] as CompiledEndpoint,
    unsupported: endpoints.find((endpoint) => endpoint.unsupported !== undefined),
    encodedSlash: endpoints.every((endpoint) => endpoint.source.allowEncodedSlash),
    enforced: endpoints.some((endpoint) => endpoint.source.enforcement === "enforce"),
    provider: bound?.source.credentialProvider,
    bodyRewrite: endpoints.every((endpoint) => endpoint.source.requestBodyCredentialRewrite),
  };
}

function what(method: string, query: RequestQuery): string {
  return `${escapeText(method, 32)} ${escapeText(query.path)}`;
}

/** `reason` is empty when a rule allows, else why an audit endpoint would have refused. */
function allow(endpoint: CompiledEndpoint, terms: Terms, reason: string): RequestAllowed {
  return {
    allowed: true,
    policy: endpoint.rule.key,
    audited: reason !== "",
    reason,
    endpoint: endpoint.index,
    credentialProvider: terms.provider,
    requestBodyCredentialRewrite: terms.bodyRewrite,
  };
}

function deny(
  code: DenialCode,
  reason: string,
  next: string,
  endpoint: CompiledEndpoint | undefined,
  policy = endpoint?.rule.key ?? "",
): RequestDecision {
  return { allowed: false, audited: false, code, reason, next, policy, endpoint: endpoint?.index ?? -1 };
}

/** A NUL makes every matcher of the reference fail; here the question is refused before any is asked. */
function isSaneRequest(query: RequestQuery): boolean {
  if (!/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/.test(query.method)) return false;
  if (!query.path.startsWith("/") || query.path.length > PolicyLimit.pathBytes || /[^\x21-\x7e]/.test(query.path)) {
    return false;
  }
  return query.query.every(([key, value]) => !key.includes("\0") && !value.includes("\0"));
}

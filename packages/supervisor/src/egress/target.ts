import { RuntimeError } from "@openshell/base";
import type { ConnectionAllowed, Denied } from "@openshell/policy/decision.ts";
import type { AddressBytes } from "./address.ts";
import type { DenialCode } from "./denial-code.ts";
import { checkDestination } from "./destination.ts";
import type { DecidingEngine } from "./events.ts";
import type { Generation } from "./generation.ts";
import type { Owner } from "./identify.ts";

/** What all owners of a connection may do at one destination: the strictest of their grants. */
export interface Access {
  readonly grants: readonly ConnectionAllowed[];
  readonly policy: string;
  readonly tls: "auto" | "skip";
  readonly inspected: boolean;
  readonly allowUninspectedCredentials: boolean;
}

/** A refusal, ready to be told to the client and to the log. */
export interface Refusal {
  readonly status: number;
  readonly engine: DecidingEngine;
  /** Stable `error` of the body. */
  readonly code: DenialCode;
  /** Of a destination check: which one, in the reference's words. */
  readonly kind: string;
  readonly reason: string;
  readonly next: string;
  readonly policy: string;
}

export function refusalOf(denied: Denied): Refusal {
  const { reason, next, policy } = denied;
  return { status: 403, engine: "opa", code: "policy_denied", kind: "", reason, next, policy };
}

/** Asks for every owner; all must be allowed. */
export function decideAccess(
  generation: Generation,
  host: string,
  port: number,
  owners: readonly Owner[],
): Access | Denied {
  const grants: ConnectionAllowed[] = [];
  for (const owner of owners) {
    const decision = generation.policy.connect({ host, port, process: owner.process });
    if (!decision.allowed) return decision;
    if (!grants.includes(decision)) grants.push(decision);
  }
  const [first] = grants;
  // No owner was asked about: nobody is known to be allowed.
  if (first === undefined) {
    return { allowed: false, code: "invalid_query", reason: "the process is unknown", next: "Try again.", policy: "" };
  }
  if (grants.length === 1) {
    const { policy, tls, inspected, allowUninspectedCredentials } = first;
    return { grants, policy, tls, inspected, allowUninspectedCredentials };
  }
  return {
    grants,
    policy: first.policy,
    tls: grants.every((grant) => grant.tls === "skip") ? "skip" : "auto",
    inspected: grants.some((grant) => grant.inspected),
    allowUninspectedCredentials: grants.every((grant) => grant.allowUninspectedCredentials),
  };
}

export function isDenied(access: Access | Denied): access is Denied {
  return "allowed" in access;
}

/** One destination of one connection: decided anew with each generation, resolved once and pinned. */
export class Target {
  readonly host: string;
  readonly port: number;
  #addresses: readonly AddressBytes[] | undefined;
  #generation: Generation | undefined;
  #owners: readonly Owner[] | undefined;
  #access: Access | undefined;

  constructor(host: string, port: number) {
    this.host = host;
    this.port = port;
  }

  /** Only after `authorise` allowed. */
  get access(): Access {
    if (this.#access === undefined) throw new RuntimeError("internal", "The destination was not authorised");
    return this.#access;
  }

  /** Rule that allowed it, or empty before that. */
  get policy(): string {
    return this.#access?.policy ?? "";
  }

  get addresses(): readonly AddressBytes[] {
    return this.#addresses ?? [];
  }

  /** Undefined when allowed. Free of cost when neither the generation nor the owners changed. */
  authorise(generation: Generation, owners: readonly Owner[]): Refusal | undefined | Promise<Refusal | undefined> {
    if (this.#generation === generation && this.#owners === owners) return undefined;
    const access = decideAccess(generation, this.host, this.port, owners);
    if (isDenied(access)) return refusalOf(access);
    if (this.#addresses !== undefined) return this.#accept(generation, owners, access, this.#addresses);
    return this.#resolve(generation, owners, access);
  }

  /** What `next` says about a destination that is in use; nothing is resolved again. Undefined: still allowed. */
  reconsider(next: Generation, owners: readonly Owner[]): Refusal | undefined {
    const access = decideAccess(next, this.host, this.port, owners);
    if (isDenied(access)) return refusalOf(access);
    if (this.#addresses === undefined) return undefined;
    return this.#accept(next, owners, access, this.#addresses);
  }

  async #resolve(generation: Generation, owners: readonly Owner[], access: Access): Promise<Refusal | undefined> {
    let addresses: readonly AddressBytes[];
    try {
      addresses = await generation.network.resolver.resolve(this.host);
    } catch (error) {
      const { message, next } = error as RuntimeError;
      return {
        status: 502,
        engine: "upstream",
        code: "upstream_unreachable",
        kind: "",
        reason: message,
        next: next ?? "",
        policy: access.policy,
      };
    }
    this.#addresses = addresses;
    return this.#accept(generation, owners, access, addresses);
  }

  #accept(
    generation: Generation,
    owners: readonly Owner[],
    access: Access,
    addresses: readonly AddressBytes[],
  ): Refusal | undefined {
    for (const grant of access.grants) {
      const checked = checkDestination(
        { host: this.host, port: this.port, addresses },
        grant,
        generation.network.destinations,
      );
      if (checked.allowed) continue;
      const { kind, reason, next } = checked;
      return { status: 403, engine: "ssrf", code: "ssrf_denied", kind, reason, next, policy: access.policy };
    }
    this.#generation = generation;
    this.#owners = owners;
    this.#access = access;
    return undefined;
  }
}

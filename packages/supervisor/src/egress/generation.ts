import type { SecureContext } from "node:tls";
import type { CompiledPolicy } from "@openshell/policy";
import type { MiddlewareRegistry } from "../middleware/registry.ts";
import type { CredentialSource } from "./credential-source.ts";
import type { DestinationRules } from "./destination.ts";
import type { UpstreamResolver } from "./resolve.ts";

/** Network settings of a sandbox, ready for use. Equal settings are the same object, so that nothing is rebuilt for them. */
export interface EgressNetwork {
  readonly resolver: UpstreamResolver;
  /** Whom upstream TLS trusts. */
  readonly upstreamTls: SecureContext;
  readonly destinations: DestinationRules;
}

/**
 * Everything that decides about one request, in one immutable snapshot: no request ever sees the policy of one
 * generation and the credentials of another.
 */
export interface Generation {
  /** Grows with each publication; for events and logs only, never compared to decide. */
  readonly number: number;
  readonly policy: CompiledPolicy;
  readonly credentials: CredentialSource;
  /** The services that requests may be shown to. */
  readonly middleware: MiddlewareRegistry;
  readonly network: EgressNetwork;
}

/** Something alive that an older generation allowed: a connection with its request in flight. */
export interface Subject {
  /** Asked after each publication. Ends itself when `next` no longer allows it, and reports that once. */
  reconsider(next: Generation): void;
}

/** Holds the current generation and what lives under it. */
export class GenerationHolder {
  #current: Generation;
  readonly #subjects = new Set<Subject>();

  constructor(first: Generation) {
    this.#current = first;
  }

  get current(): Generation {
    return this.#current;
  }

  register(subject: Subject): void {
    this.#subjects.add(subject);
  }

  unregister(subject: Subject): void {
    this.#subjects.delete(subject);
  }

  /** Later decisions use `next`; what lives is asked about again, by decision and not by version, so an unchanged policy ends nothing. */
  publish(next: Generation): void {
    this.#current = next;
    for (const subject of [...this.#subjects]) subject.reconsider(next);
  }
}

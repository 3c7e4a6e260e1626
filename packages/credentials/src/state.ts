/**
 * The credentials of one sandbox, as immutable generations. A request takes the generation of the moment and keeps it;
 * publishing a new one changes nothing for requests under way, except that `revision` tells them.
 */

import { type Binding, bindingOf } from "./binding.ts";
import { EndpointCredentials, type EndpointRequest } from "./endpoint.ts";
import { CredentialLimit } from "./limits.ts";
import { redactPlaceholders } from "./placeholder.ts";
import { REDACTED } from "./secret.ts";
import { checkSnapshot, isUsable, type ProviderSnapshot, type SnapshotProblem } from "./snapshot.ts";

export type ApplyResult =
  | {
      readonly ok: true;
      /** False when the snapshot has the revision in force: nothing happened. */
      readonly changed: boolean;
      /** Names that were left out because their shape is reserved for placeholders. */
      readonly skipped: readonly string[];
    }
  | { readonly ok: false; readonly problem: SnapshotProblem };

export class CredentialGeneration {
  /** Of the snapshot; equality only. Compare before each upstream write with the state's. */
  readonly revision: string;
  readonly #bindings: ReadonlyMap<string, Binding>;
  readonly #environment: ReadonlyMap<string, string>;

  constructor(revision: string, bindings: ReadonlyMap<string, Binding>, environment: ReadonlyMap<string, string>) {
    this.revision = revision;
    this.#bindings = bindings;
    this.#environment = environment;
  }

  /** What processes of the sandbox get: placeholders, and plain values of keys that are no secret. */
  childEnvironment(): ReadonlyMap<string, string> {
    return this.#environment;
  }

  /** The credentials as seen from one request to one endpoint. */
  forEndpoint(request: EndpointRequest): EndpointCredentials {
    return new EndpointCredentials(this.#bindings, request);
  }

  bindings(): Iterable<Binding> {
    return this.#bindings.values();
  }
}

const EMPTY = new CredentialGeneration("", new Map(), new Map());

export class CredentialState {
  #current = EMPTY;
  /** Newest first; only for what they must never show again in logs. */
  #retired: readonly CredentialGeneration[] = [];
  /** Longest first, so that a value inside another one does not spoil it. */
  #searched: readonly string[] = [];

  get current(): CredentialGeneration {
    return this.#current;
  }

  get revision(): string {
    return this.#current.revision;
  }

  /** Publishes a snapshot. A bad one takes every credential away: using old ones could be using revoked ones. */
  apply(snapshot: ProviderSnapshot): ApplyResult {
    if (snapshot.revision !== "" && snapshot.revision === this.#current.revision) {
      return { ok: true, changed: false, skipped: [] };
    }
    const problem = checkSnapshot(snapshot);
    if (problem !== undefined) {
      this.revoke();
      return { ok: false, problem };
    }
    const bindings = new Map<string, Binding>();
    const environment = new Map<string, string>();
    const skipped: string[] = [];
    for (const value of snapshot.values) {
      if (!isUsable(value)) {
        if (value.value.length > 0) skipped.push(value.name);
        continue;
      }
      if (value.classification === "non_secret") {
        environment.set(value.name, value.value.reveal());
        continue;
      }
      const binding = bindingOf(value);
      bindings.set(value.name, binding);
      environment.set(value.name, binding.placeholder);
    }
    this.#publish(new CredentialGeneration(snapshot.revision, bindings, environment));
    return { ok: true, changed: true, skipped };
  }

  /** Takes all credentials away; running processes keep their placeholders, which resolve to nothing until the next `apply`. */
  revoke(): void {
    this.#publish(EMPTY);
  }

  /** `text` without any live or recently retired value, and without placeholders: for everything that is logged. */
  redact(text: string): string {
    let result = text;
    for (const value of this.#searched) {
      if (result.includes(value)) result = result.replaceAll(value, REDACTED);
    }
    return redactPlaceholders(result, REDACTED);
  }

  #publish(next: CredentialGeneration): void {
    if (this.#current !== EMPTY) {
      this.#retired = [this.#current, ...this.#retired].slice(0, CredentialLimit.generations);
    }
    this.#current = next;
    const values = new Set<string>();
    for (const generation of [next, ...this.#retired]) {
      for (const binding of generation.bindings()) for (const form of binding.searchedForms()) values.add(form);
    }
    this.#searched = [...values].sort((a, b) => b.length - a.length);
  }
}

import { X509Certificate } from "node:crypto";
import type { Clock } from "@openshell/base";
import { Secret } from "../auth/secret.ts";
import { isStoreError } from "../store/errors.ts";
import type { Store } from "../store/types.ts";
import type { SecretContext, Vault } from "../store/vault.ts";
import { type KeyPairPem, Validity } from "./types.ts";

/** The CA that signs the certificates which a workspace's sandboxes see in inspected TLS. */
export interface InspectionCaMaterial {
  readonly certificatePem: string;
  /** PKCS#8. Goes to the hosts of the workspace and nowhere else. */
  readonly privateKeyPem: Secret;
}

export interface InspectionCas {
  /** The CA of a workspace; made and stored (encrypted) at the first call. Concurrent calls get the same one. */
  of(workspace: string): Promise<InspectionCaMaterial>;
}

const NAME = "inspection-ca";
/** Makes a new CA when the old one ends within this. Milliseconds. */
const RENEW_BEFORE_MS = 90 * 86_400_000;

export interface InspectionCaDeps {
  readonly store: Pick<Store, "secrets" | "write">;
  readonly vault: Vault;
  readonly clock: Clock;
}

/** One CA a workspace, unrelated to the control plane's. */
export function createInspectionCas(deps: InspectionCaDeps): InspectionCas {
  const pending = new Map<string, Promise<InspectionCaMaterial>>();
  return {
    of(workspace) {
      const known = pending.get(workspace);
      if (known !== undefined) return known;
      const made = loadOrIssue(deps, workspace).finally(() => pending.delete(workspace));
      pending.set(workspace, made);
      return made;
    },
  };
}

async function loadOrIssue(deps: InspectionCaDeps, workspace: string): Promise<InspectionCaMaterial> {
  const { store, vault, clock } = deps;
  const scope = `workspace:${workspace}`;
  const stored = await store.secrets.get(scope, NAME);
  if (stored !== undefined) {
    const text = vault.open(contextOf(workspace, stored.version), stored.sealed).toString("utf8");
    const pair = JSON.parse(text) as KeyPairPem;
    const ends = new X509Certificate(pair.certificatePem).validToDate.getTime();
    if (ends - clock.now() > RENEW_BEFORE_MS) return material(pair);
  }
  const { issueAuthority } = await import("./issue.ts");
  const commonName = `OpenShell inspection (${workspace})`;
  const pair = await issueAuthority({ commonName, days: Validity.authority, now: clock.now() });
  const version = (stored?.version ?? 0n) + 1n;
  const sealed = vault.seal(contextOf(workspace, version), JSON.stringify(pair));
  try {
    await store.write(store.secrets.put(scope, NAME, version, sealed));
  } catch (error) {
    // Somebody stored one in between: theirs is the workspace's.
    if (isStoreError(error, "store_conflict")) return loadOrIssue(deps, workspace);
    throw error;
  }
  return material(pair);
}

function material(pair: KeyPairPem): InspectionCaMaterial {
  return { certificatePem: pair.certificatePem, privateKeyPem: new Secret(pair.privateKeyPem) };
}

function contextOf(workspace: string, version: bigint): SecretContext {
  return { purpose: "secret", workspace, owner: `workspace:${workspace}`, key: NAME, version };
}

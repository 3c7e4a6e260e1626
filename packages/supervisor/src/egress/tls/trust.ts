import { createHash, X509Certificate } from "node:crypto";
import { createSecureContext, getCACertificates, type SecureContext } from "node:tls";

/**
 * Whom upstream TLS trusts: the roots of the runtime and of the machine, plus what the configuration adds. Reading some
 * hundred roots costs tens of milliseconds, so a host makes one store and every sandbox with the same addition shares it.
 */
export class TrustStore {
  readonly #contexts = new Map<string, SecureContext>();
  readonly #roots: () => readonly string[];

  constructor(roots: () => readonly string[] = systemRoots) {
    this.#roots = roots;
  }

  /** `additionalPem` holds any number of certificates, or is empty. Throws when it cannot be read. */
  context(additionalPem: string): SecureContext {
    const key = createHash("sha256").update(additionalPem).digest("hex");
    let context = this.#contexts.get(key);
    if (context === undefined) {
      const additional = splitPem(additionalPem);
      if (additional.length === 0 && additionalPem.trim() !== "") throw new Error("the bundle holds no certificate");
      // createSecureContext passes over what it cannot read; an operator must learn of it.
      for (const pem of additional) new X509Certificate(pem);
      const ca = [...this.#roots(), ...additional];
      context = createSecureContext({ ca, minVersion: "TLSv1.2" });
      // One entry a configuration; a bound only against endless reconfiguration.
      if (this.#contexts.size >= 16) this.#contexts.clear();
      this.#contexts.set(key, context);
    }
    return context;
  }
}

function systemRoots(): readonly string[] {
  return [...new Set([...getCACertificates("bundled"), ...getCACertificates("system")])];
}

/** The certificates of a bundle; what stands between them is ignored. */
export function splitPem(bundle: string): string[] {
  return bundle.match(/-----BEGIN CERTIFICATE-----[\s\S]+?-----END CERTIFICATE-----/g) ?? [];
}

import "reflect-metadata";
import {
  createPrivateKey,
  type KeyObject,
  X509Certificate as NodeCertificate,
  randomBytes,
  webcrypto,
} from "node:crypto";
import { createSecureContext, type SecureContext } from "node:tls";
import { RuntimeError } from "@openshell/base";
import * as x509 from "@peculiar/x509";
import { isIpLiteral } from "../host-name.ts";
import { LEAF_DAYS, MAX_LEAVES } from "../limits.ts";

const P256 = { name: "ECDSA", namedCurve: "P-256" } as const;
const SIGNING = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;
const DAY_MS = 24 * 3600_000;

export interface InspectionCaMaterial {
  readonly certificatePem: string;
  /** PKCS #8, EC P-256. */
  readonly privateKeyPem: string;
}

/**
 * Certificates for inspected hosts, signed by the workspace's CA. All leaves of one CA share a key: it never leaves this
 * process, and making one for each host would cost more than signing. One object may serve every sandbox of a workspace.
 */
export class LeafMint {
  readonly #ca: x509.X509Certificate;
  readonly #caPem: string;
  readonly #caKey: webcrypto.CryptoKey;
  readonly #leafKeys: webcrypto.CryptoKeyPair;
  readonly #leafKeyPem: string;
  readonly #now: () => number;
  readonly #leaves = new Map<string, { readonly context: Promise<SecureContext>; readonly renewAt: number }>();

  private constructor(
    ca: x509.X509Certificate,
    caPem: string,
    caKey: webcrypto.CryptoKey,
    leafKeys: webcrypto.CryptoKeyPair,
    leafKeyPem: string,
    now: () => number,
  ) {
    this.#ca = ca;
    this.#caPem = caPem;
    this.#caKey = caKey;
    this.#leafKeys = leafKeys;
    this.#leafKeyPem = leafKeyPem;
    this.#now = now;
  }

  /** Throws `inspection_ca_invalid` when certificate and key do not belong together or are no P-256 CA. */
  static async create(material: InspectionCaMaterial, now: () => number = Date.now): Promise<LeafMint> {
    try {
      const certificate = new NodeCertificate(material.certificatePem);
      const key: KeyObject = createPrivateKey(material.privateKeyPem);
      if (!certificate.ca || !certificate.checkPrivateKey(key)) throw new Error("not a CA with its own key");
      const pkcs8 = key.export({ type: "pkcs8", format: "der" });
      const caKey = await webcrypto.subtle.importKey("pkcs8", pkcs8, P256, false, ["sign"]);
      const leafKeys = await webcrypto.subtle.generateKey(P256, true, ["sign", "verify"]);
      const leafDer = Buffer.from(await webcrypto.subtle.exportKey("pkcs8", leafKeys.privateKey));
      const leafKeyPem = createPrivateKey({ key: leafDer, format: "der", type: "pkcs8" })
        .export({ type: "pkcs8", format: "pem" })
        .toString();
      const ca = new x509.X509Certificate(certificate.raw);
      return new LeafMint(ca, material.certificatePem, caKey, leafKeys, leafKeyPem, now);
    } catch (cause) {
      throw new RuntimeError("inspection_ca_invalid", "The inspection CA cannot be used", {
        next: "Restart the gateway so that it issues the workspace's CA anew.",
        cause,
      });
    }
  }

  /** A certificate for `host` is at hand. */
  has(host: string): boolean {
    const known = this.#leaves.get(host);
    return known !== undefined && known.renewAt > this.#now();
  }

  /** Ready to serve `host` (a DNS name or an IP literal). */
  context(host: string): Promise<SecureContext> {
    const known = this.#leaves.get(host);
    if (known !== undefined && known.renewAt > this.#now()) {
      this.#leaves.delete(host);
      this.#leaves.set(host, known);
      return known.context;
    }
    const context = this.#make(host);
    this.#leaves.delete(host);
    this.#leaves.set(host, { context, renewAt: this.#now() + (LEAF_DAYS / 2) * DAY_MS });
    context.catch(() => this.#leaves.delete(host));
    if (this.#leaves.size > MAX_LEAVES) {
      const [oldest] = this.#leaves.keys();
      this.#leaves.delete(oldest!);
    }
    return context;
  }

  async #make(host: string): Promise<SecureContext> {
    const certificate = await this.certificate(host);
    return createSecureContext({
      key: this.#leafKeyPem,
      cert: `${certificate}\n${this.#caPem}`,
      minVersion: "TLSv1.2",
    });
  }

  /** The leaf for `host` as PEM. */
  async certificate(host: string): Promise<string> {
    const now = this.#now();
    const serial = randomBytes(16);
    // Positive and never zero (RFC 5280 §4.1.2.2).
    serial[0] = (serial[0]! & 0x7f) | 0x40;
    const leaf = await x509.X509CertificateGenerator.create(
      {
        serialNumber: serial.toString("hex"),
        // A common name holds 64 characters; clients look at the alternative name alone.
        subject: [{ CN: [host.length <= 64 ? host : "inspected host"] }],
        issuer: this.#ca.subjectName,
        // A day back: clocks of the two sides may differ by a time zone mistake.
        notBefore: new Date(now - DAY_MS),
        notAfter: new Date(now + LEAF_DAYS * DAY_MS),
        signingAlgorithm: SIGNING,
        publicKey: this.#leafKeys.publicKey,
        signingKey: this.#caKey,
        extensions: [
          new x509.BasicConstraintsExtension(false, undefined, true),
          new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
          new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth]),
          new x509.SubjectAlternativeNameExtension([{ type: isIpLiteral(host) ? "ip" : "dns", value: host }]),
          await x509.AuthorityKeyIdentifierExtension.create(this.#ca, false, webcrypto as never),
          await x509.SubjectKeyIdentifierExtension.create(this.#leafKeys.publicKey, false, webcrypto as never),
        ],
      },
      webcrypto as never,
    );
    return leaf.toString("pem");
  }
}

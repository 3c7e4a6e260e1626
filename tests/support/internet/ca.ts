import "reflect-metadata";
import { KeyObject, webcrypto } from "node:crypto";
import { isIP } from "node:net";
import * as x509 from "@peculiar/x509";

/**
 * The certificate authority of one test internet, and an unrelated one for certificates that must not be accepted.
 * Keys live in memory; only the root's certificate is written, for `additional_ca_bundle`.
 */

const ALGORITHM = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;
const DAY_MS = 86_400_000;

/**
 * What is wrong with a host's certificate: "valid" (nothing), "expired", "not-yet-valid", "wrong-name" (another
 * name's), "untrusted" (of an unknown authority), "self-signed".
 */
export type CertificateKind = "valid" | "expired" | "not-yet-valid" | "wrong-name" | "untrusted" | "self-signed";

/** Material for node:tls. */
export interface ServerCertificate {
  readonly key: string;
  /** Leaf, then authority. */
  readonly cert: string;
}

interface Authority {
  readonly certificate: x509.X509Certificate;
  readonly keys: webcrypto.CryptoKeyPair;
}

function serial(): string {
  // The first bit is cleared: a serial number is positive (RFC 5280 §4.1.2.2).
  const bytes = webcrypto.getRandomValues(new Uint8Array(16));
  bytes[0] = (bytes[0]! & 0x7f) | 0x01;
  return Buffer.from(bytes).toString("hex");
}

async function newAuthority(name: string): Promise<Authority> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: serial(),
    name: `CN=${name}`,
    notBefore: new Date(Date.now() - DAY_MS),
    notAfter: new Date(Date.now() + 30 * DAY_MS),
    signingAlgorithm: ALGORITHM,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  return { certificate, keys };
}

function pem(key: webcrypto.CryptoKey): string {
  return KeyObject.from(key).export({ type: "pkcs8", format: "pem" }) as string;
}

/** See the file's comment. */
export class TestAuthority {
  readonly #trusted: Authority;
  readonly #unknown: Authority;
  /** The root certificate, PEM. */
  readonly pem: string;

  private constructor(trusted: Authority, unknown: Authority) {
    this.#trusted = trusted;
    this.#unknown = unknown;
    this.pem = `${trusted.certificate.toString("pem")}\n`;
  }

  static async create(): Promise<TestAuthority> {
    return new TestAuthority(await newAuthority("Test internet root"), await newAuthority("Unknown root"));
  }

  /** A certificate for `names` (DNS names and addresses), of a server unless told otherwise, with the given defect. */
  async issue(
    names: readonly string[],
    kind: CertificateKind = "valid",
    usage: "serverAuth" | "clientAuth" = "serverAuth",
  ): Promise<ServerCertificate> {
    const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
    const shown = kind === "wrong-name" ? ["another-name.example-other.net"] : names;
    const issuer = kind === "untrusted" ? this.#unknown : this.#trusted;
    const now = Date.now();
    const from = kind === "not-yet-valid" ? now + DAY_MS : now - 3 * DAY_MS;
    const until = kind === "expired" ? now - DAY_MS : now + 10 * DAY_MS;
    const subject = `CN=${shown[0]?.slice(0, 64)}`;
    const selfSigned = kind === "self-signed";
    const certificate = await x509.X509CertificateGenerator.create({
      serialNumber: serial(),
      subject,
      issuer: selfSigned ? subject : issuer.certificate.subject,
      notBefore: new Date(from),
      notAfter: new Date(until),
      signingAlgorithm: ALGORITHM,
      publicKey: keys.publicKey,
      signingKey: selfSigned ? keys.privateKey : issuer.keys.privateKey,
      extensions: [
        new x509.BasicConstraintsExtension(false, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
        new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage[usage]]),
        new x509.SubjectAlternativeNameExtension(
          shown.map((name) => ({ type: isIP(name) ? ("ip" as const) : ("dns" as const), value: name })),
        ),
        await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
        await x509.AuthorityKeyIdentifierExtension.create(selfSigned ? keys.publicKey : issuer.keys.publicKey),
      ],
    });
    const chain = selfSigned ? [certificate] : [certificate, issuer.certificate];
    return { key: pem(keys.privateKey), cert: chain.map((one) => one.toString("pem")).join("\n") };
  }
}

import "reflect-metadata";
import { randomBytes } from "node:crypto";
import { isIP } from "node:net";
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  type GeneralNameType,
  type JsonName,
  KeyUsageFlags,
  KeyUsagesExtension,
  SubjectAlternativeNameExtension,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
} from "@peculiar/x509";
import type { KeyPairPem } from "./types.ts";

/**
 * Makes keys and certificates: ECDSA P-256, SHA-256, RFC 5280 extensions. The only importer of the certificate library,
 * loaded only when something must be issued.
 */

const ALGORITHM = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } as const;
const DAY_MS = 86_400_000;
/** Certificates are valid from this long ago, for clocks that differ. */
const BACKDATE_MS = 3_600_000;

export interface AuthorityRequest {
  readonly commonName: string;
  readonly days: number;
  readonly now: number;
}

/** A self-signed CA that may sign leaves and nothing below them. */
export async function issueAuthority({ commonName, days, now }: AuthorityRequest): Promise<KeyPairPem> {
  const keys = await crypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    name: nameOf(commonName),
    ...validity(now, days),
    signingAlgorithm: ALGORITHM,
    keys,
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  return { certificatePem: pem(certificate.toString("pem")), privateKeyPem: await exportKey(keys.privateKey) };
}

export interface LeafRequest {
  readonly authority: KeyPairPem;
  readonly commonName: string;
  readonly organizationalUnit?: string;
  readonly use: "server" | "client";
  /** DNS names and IP addresses. */
  readonly names: readonly string[];
  readonly days: number;
  readonly now: number;
}

/** A certificate for one end of a connection, with a new key. */
export async function issueLeaf(request: LeafRequest): Promise<KeyPairPem> {
  const issuer = new X509Certificate(request.authority.certificatePem);
  const signingKey = await importKey(request.authority.privateKeyPem);
  const keys = await crypto.subtle.generateKey(ALGORITHM, true, ["sign", "verify"]);
  const use = request.use === "server" ? ExtendedKeyUsage.serverAuth : ExtendedKeyUsage.clientAuth;
  const names = request.names.map((value) => ({ type: (isIP(value) ? "ip" : "dns") as GeneralNameType, value }));
  const certificate = await X509CertificateGenerator.create({
    serialNumber: serialNumber(),
    subject: nameOf(request.commonName, request.organizationalUnit),
    issuer: issuer.subjectName.toJSON(),
    ...validity(request.now, request.days),
    signingAlgorithm: ALGORITHM,
    publicKey: keys.publicKey,
    signingKey,
    extensions: [
      new BasicConstraintsExtension(false, undefined, true),
      new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
      new ExtendedKeyUsageExtension([use]),
      ...(names.length === 0 ? [] : [new SubjectAlternativeNameExtension(names)]),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
      await AuthorityKeyIdentifierExtension.create(await issuer.publicKey.export()),
    ],
  });
  return { certificatePem: pem(certificate.toString("pem")), privateKeyPem: await exportKey(keys.privateKey) };
}

function nameOf(commonName: string, organizationalUnit?: string): JsonName {
  return [
    { O: ["openshell"] },
    ...(organizationalUnit === undefined ? [] : [{ OU: [organizationalUnit] }]),
    { CN: [commonName] },
  ];
}

function validity(now: number, days: number): { readonly notBefore: Date; readonly notAfter: Date } {
  return { notBefore: new Date(now - BACKDATE_MS), notAfter: new Date(now + days * DAY_MS) };
}

/** 16 random bytes, positive and without leading zero (RFC 5280 §4.1.2.2). */
function serialNumber(): string {
  const bytes = randomBytes(16);
  bytes[0] = (bytes[0]! & 0x3f) | 0x40;
  return bytes.toString("hex");
}

function pem(text: string): string {
  return text.endsWith("\n") ? text : `${text}\n`;
}

async function exportKey(key: CryptoKey): Promise<string> {
  const der = Buffer.from(await crypto.subtle.exportKey("pkcs8", key));
  const lines = der.toString("base64").match(/.{1,64}/g) ?? [];
  return `-----BEGIN PRIVATE KEY-----\n${lines.join("\n")}\n-----END PRIVATE KEY-----\n`;
}

async function importKey(text: string): Promise<CryptoKey> {
  const base64 = text.replace(/-----[A-Z ]+-----/g, "");
  return crypto.subtle.importKey("pkcs8", Buffer.from(base64, "base64"), ALGORITHM, false, ["sign"]);
}

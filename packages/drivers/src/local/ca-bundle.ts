import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { chmod, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { unlessAbsent } from "@openshell/base/absent.ts";
import { DriverError } from "../driver.ts";

/** Where distributions keep the roots that the machine trusts; the first that exists is used. */
export const SYSTEM_BUNDLES: readonly string[] = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/ca-bundle.pem",
  "/etc/ssl/cert.pem",
];

/** Java's store of the distribution's JVMs: Debian, Fedora. */
export const JAVA_TRUST_STORES: readonly string[] = [
  "/etc/ssl/certs/java/cacerts",
  "/etc/pki/ca-trust/extracted/java/cacerts",
];

/** Names in a sandbox's trust folder; the first two as in OpenShell 0.1. */
export const TRUST_FILES = { bundle: "ca-bundle.pem", ca: "openshell-ca.pem", javaTrustStore: "cacerts.jks" } as const;

/**
 * Writes the files into `folder`, readable by everyone whatever the umask: they are public, and the agent has another id.
 * Not forced to the disk, they are written for each launch.
 */
export async function writeTrustFiles(folder: string, files: TrustFiles): Promise<void> {
  const write = async (name: string, content: string | Uint8Array): Promise<void> => {
    const path = join(folder, name);
    await writeFile(path, content);
    await chmod(path, 0o644);
  };
  await Promise.all([
    write(TRUST_FILES.bundle, files.bundlePem),
    write(TRUST_FILES.ca, files.caPem),
    write(TRUST_FILES.javaTrustStore, files.javaTrustStore),
  ]);
}

/** The machine's roots as PEM; empty when it has none. `read` answers undefined for a file that is not there. */
export function systemRoots(read: (path: string) => string | undefined = readText): string {
  for (const path of SYSTEM_BUNDLES) {
    const text = read(path);
    if (text !== undefined) return text;
  }
  return "";
}

/** A sandbox whose clients trust nobody is no answer to a bundle that cannot be read now. */
function readText(path: string): string | undefined {
  return unlessAbsent(() => readFileSync(path, "utf8"));
}

/** What a sandbox's clients are given. */
export interface TrustFiles {
  /** Machine's roots, additional roots, inspection CA. */
  readonly bundlePem: string;
  /** The inspection CA alone. */
  readonly caPem: string;
  /** The bundle as a Java key store. */
  readonly javaTrustStore: Uint8Array;
}

/** Merges the roots. Throws `invalid_intent` when the inspection CA is not exactly one certificate. */
export function trustFiles(systemPem: string, additionalPem: string, inspectionCaPem: string): TrustFiles {
  const own = certificates(inspectionCaPem);
  if (own.length !== 1) {
    throw new DriverError("invalid_intent", `the inspection CA holds ${own.length} certificates, expected one`);
  }
  const seen = new Set<string>();
  const all = [...certificates(systemPem), ...certificates(additionalPem), ...own].filter((der) => {
    const key = der.toString("base64");
    const first = !seen.has(key);
    seen.add(key);
    return first;
  });
  return {
    bundlePem: all.map(toPem).join(""),
    caPem: toPem(own[0]!),
    javaTrustStore: javaTrustStore(all),
  };
}

/** Sets of roots kept in memory; a gateway has one for each workspace in use. */
const CACHE_ENTRIES = 16;

/** `trustFiles`, remembered: parsing some hundred certificates costs milliseconds that every create would pay. */
export class TrustCache {
  readonly #entries = new Map<string, TrustFiles>();

  get(systemPem: string, additionalPem: string, inspectionCaPem: string): TrustFiles {
    const key = createHash("sha256")
      .update(JSON.stringify([systemPem, additionalPem, inspectionCaPem]))
      .digest("hex");
    const known = this.#entries.get(key) ?? trustFiles(systemPem, additionalPem, inspectionCaPem);
    this.#entries.delete(key);
    this.#entries.set(key, known);
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= CACHE_ENTRIES) break;
      this.#entries.delete(oldest);
    }
    return known;
  }
}

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----/g;

/** DER of each certificate in a PEM text; anything else in it (comments, keys) is left out. */
function certificates(pem: string): Buffer[] {
  return [...pem.matchAll(PEM_CERTIFICATE)].map((match) => Buffer.from(match[1]!, "base64"));
}

function toPem(der: Buffer): string {
  const lines = der.toString("base64").match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join("\n")}\n-----END CERTIFICATE-----\n`;
}

const JKS_MAGIC = 0xfeedfeed;
const JKS_VERSION = 2;
const JKS_TRUSTED_CERTIFICATE = 2;
/** Java's conventional password for public trust stores; it protects nothing, the digest is only a checksum. */
const JKS_PASSWORD = "changeit";

/**
 * A "JKS" store of trusted certificates, readable by every JVM (format: sun.security.provider.JavaKeyStore): magic,
 * version, count, then tag, alias, date, type, DER each; SHA-1 over password, a fixed phrase and all before.
 */
function javaTrustStore(ders: readonly Buffer[]): Uint8Array {
  const parts: Buffer[] = [u32(JKS_MAGIC), u32(JKS_VERSION), u32(ders.length)];
  for (const [index, der] of ders.entries()) {
    // The date is epoch 0, so that equal roots give equal bytes.
    parts.push(
      u32(JKS_TRUSTED_CERTIFICATE),
      text(`root-${index}`),
      Buffer.alloc(8),
      text("X.509"),
      u32(der.length),
      der,
    );
  }
  const body = Buffer.concat(parts);
  const password = Buffer.from(JKS_PASSWORD, "utf16le").swap16();
  const digest = createHash("sha1").update(password).update("Mighty Aphrodite").update(body).digest();
  return Buffer.concat([body, digest]);
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** Java's modified UTF-8; all our strings are ASCII. */
function text(value: string): Buffer {
  const bytes = Buffer.alloc(2 + value.length);
  bytes.writeUInt16BE(value.length);
  bytes.write(value, 2, "ascii");
  return bytes;
}

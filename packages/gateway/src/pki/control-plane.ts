import { createPrivateKey, X509Certificate } from "node:crypto";
import { isIP } from "node:net";
import { join } from "node:path";
import { ensureFolder, RuntimeError, writeFileAtomic } from "@openshell/base";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";
import { type KeyPairPem, Validity } from "./types.ts";

/** Keys and certificates are a few KiB. */
const MAX_PEM_BYTES = 1024 * 1024;

/** The CA of the control plane and what it signed for this gateway. It has nothing to do with inspected traffic. */
export interface ControlPlanePki {
  readonly caPem: string;
  readonly server: KeyPairPem;
  /** For the user who owns the gateway; written to the discovery files. */
  readonly client: KeyPairPem;
  /** What was made anew at this start, for the log: `ca`, `server`, `client`. */
  readonly renewed: readonly string[];
}

export interface ControlPlaneOptions {
  /** `<state>/keys`. */
  readonly keys: string;
  /** `<client config>/gateways/<name>/mtls`. */
  readonly clientFolder: string;
  /** Beside the names that every local gateway has. */
  readonly extraNames: readonly string[];
  readonly now: number;
}

/** Names of a local gateway, without those of a cluster. */
export const LOCAL_NAMES: readonly string[] = [
  "localhost",
  "openshell.localhost",
  "*.openshell.localhost",
  "host.docker.internal",
  "host.containers.internal",
  "127.0.0.1",
  "::1",
];
const CLIENT_NAME = "openshell-client";
const CLIENT_UNIT = "openshell-user";

/**
 * Loads the PKI, making what is missing, what does not fit (another CA, missing names, a key that is not its
 * certificate's) and what has less than a third of its validity left. A new CA makes everything new.
 *
 * The client's key exists in the discovery folder only.
 */
export async function loadControlPlane(options: ControlPlaneOptions): Promise<ControlPlanePki> {
  const { keys, clientFolder, now } = options;
  await ensureFolder(keys);
  await ensureFolder(clientFolder);
  const renewed: string[] = [];
  const files = {
    ca: pairFiles(keys, "ca.crt", "ca.key"),
    server: pairFiles(keys, "server.crt", "server.key"),
    client: pairFiles(clientFolder, "tls.crt", "tls.key"),
  };

  const make = async (name: keyof typeof files, issue: () => Promise<KeyPairPem>): Promise<KeyPairPem> => {
    const pair = await issue();
    await files[name].write(pair);
    renewed.push(name);
    return pair;
  };
  // Only the rare start that issues something loads the certificate library.
  const issuing = () => import("./issue.ts");

  const storedCa = await files.ca.read();
  const ca =
    storedCa !== undefined && isFresh(storedCa, now) && isOwnKey(storedCa)
      ? storedCa
      : await make("ca", async () => {
          const { issueAuthority } = await issuing();
          return issueAuthority({ commonName: "openshell-ca", days: Validity.authority, now });
        });

  const usable = (pair: KeyPairPem | undefined): pair is KeyPairPem =>
    pair !== undefined && isFresh(pair, now) && isOwnKey(pair) && isSignedBy(pair, ca);

  const names = [...new Set([...LOCAL_NAMES, ...options.extraNames])];
  const storedServer = await files.server.read();
  const server =
    usable(storedServer) && hasNames(storedServer, names)
      ? storedServer
      : await make("server", async () => {
          const { issueLeaf } = await issuing();
          const leaf = { authority: ca, commonName: "openshell-server", use: "server", names } as const;
          return issueLeaf({ ...leaf, days: Validity.leaf, now });
        });

  const storedClient = await files.client.read();
  const client = usable(storedClient)
    ? storedClient
    : await make("client", async () => {
        const { issueLeaf } = await issuing();
        const subject = { commonName: CLIENT_NAME, organizationalUnit: CLIENT_UNIT };
        return issueLeaf({ authority: ca, ...subject, use: "client", names: [], days: Validity.leaf, now });
      });

  const clientCa = join(clientFolder, "ca.crt");
  if ((await readText(clientCa)) !== ca.certificatePem) await writeFileAtomic(clientCa, ca.certificatePem);
  return { caPem: ca.certificatePem, server, client, renewed };
}

function pairFiles(folder: string, certificateName: string, keyName: string) {
  const certificatePath = join(folder, certificateName);
  const keyPath = join(folder, keyName);
  return {
    async read(): Promise<KeyPairPem | undefined> {
      const [certificatePem, privateKeyPem] = await Promise.all([readText(certificatePath), readText(keyPath)]);
      return certificatePem === undefined || privateKeyPem === undefined
        ? undefined
        : { certificatePem, privateKeyPem };
    },
    async write(pair: KeyPairPem): Promise<void> {
      // A crash between the two leaves a pair that does not match: the next start sees that and makes a new one.
      await writeFileAtomic(keyPath, pair.privateKeyPem);
      await writeFileAtomic(certificatePath, pair.certificatePem);
    },
  };
}

async function readText(path: string): Promise<string | undefined> {
  try {
    return readTextFile(path, MAX_PEM_BYTES);
  } catch (cause) {
    if (!(cause instanceof UnusableFile)) throw cause;
    if (cause.missing) return undefined;
    throw new RuntimeError("pki_unreadable", `${path} ${cause.message}`, {
      next: "Correct the file's rights, or remove it to have a new one made",
      cause,
    });
  }
}

function parse(pair: KeyPairPem): X509Certificate | undefined {
  try {
    return new X509Certificate(pair.certificatePem);
  } catch {
    return undefined;
  }
}

function isFresh(pair: KeyPairPem, now: number): boolean {
  const certificate = parse(pair);
  if (certificate === undefined) return false;
  const from = certificate.validFromDate.getTime();
  const to = certificate.validToDate.getTime();
  return now >= from && to - now > (to - from) / 3;
}

function isOwnKey(pair: KeyPairPem): boolean {
  try {
    return parse(pair)?.checkPrivateKey(createPrivateKey(pair.privateKeyPem)) ?? false;
  } catch {
    return false;
  }
}

function isSignedBy(pair: KeyPairPem, ca: KeyPairPem): boolean {
  const certificate = parse(pair);
  const authority = parse(ca);
  if (certificate === undefined || authority === undefined) return false;
  return certificate.checkIssued(authority) && certificate.verify(authority.publicKey);
}

function hasNames(pair: KeyPairPem, names: readonly string[]): boolean {
  const certificate = parse(pair);
  if (certificate === undefined) return false;
  const listed = (certificate.subjectAltName ?? "").split(", ");
  return names.every((name) => (isIP(name) ? certificate.checkIP(name) !== undefined : listed.includes(`DNS:${name}`)));
}

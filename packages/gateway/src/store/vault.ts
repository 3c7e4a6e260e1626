import { createCipheriv, createDecipheriv, createHash, randomBytes } from "node:crypto";
import { RuntimeError } from "@openshell/base";

/** What a ciphertext is bound to: opened under any other context it fails. */
export interface SecretContext {
  /** `credential` or the use of a stored secret. */
  readonly purpose: string;
  readonly workspace: string;
  /** Provider id, or the scope of a secret. */
  readonly owner: string;
  readonly key: string;
  readonly version: bigint;
}

/** Seals and opens what the store keeps secret. */
export interface Vault {
  seal(context: SecretContext, plain: string | Uint8Array): Uint8Array;
  /** @throws RuntimeError secret_unreadable: other key-encryption key, other context, or altered bytes. */
  open(context: SecretContext, sealed: Uint8Array): Buffer;
}

const FORMAT = 1;
const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const KEY_ID_BYTES = 8;
const WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES;
const HEADER_BYTES = 1 + KEY_ID_BYTES + WRAPPED_BYTES;

/**
 * AES-256-GCM envelope: a fresh data key a value, itself encrypted under the key-encryption key; both ciphertexts
 * authenticate the whole context. Fresh keys make the random 96-bit nonces safe for any number of values
 * (NIST SP 800-38D §8.3).
 *
 * Layout: format (1) ‖ key id (8) ‖ nonce, wrapped data key, tag (12+32+16) ‖ nonce, ciphertext, tag.
 */
export function createVault(keyEncryptionKey: Uint8Array): Vault {
  if (keyEncryptionKey.length !== KEY_BYTES) throw new RangeError(`the key-encryption key has ${KEY_BYTES} bytes`);
  const kek = Buffer.from(keyEncryptionKey);
  const keyId = createHash("sha256").update("openshell kek id v1\0").update(kek).digest().subarray(0, KEY_ID_BYTES);
  return {
    seal(context, plain) {
      const dataKey = randomBytes(KEY_BYTES);
      const wrapped = encrypt(kek, associated(context, "key"), dataKey);
      const value = encrypt(dataKey, associated(context, "value"), Buffer.from(plain as Uint8Array));
      dataKey.fill(0);
      return Buffer.concat([Buffer.of(FORMAT), keyId, wrapped, value]);
    },
    open(context, sealed) {
      const bytes = Buffer.from(sealed.buffer, sealed.byteOffset, sealed.byteLength);
      if (bytes.length < HEADER_BYTES + NONCE_BYTES + TAG_BYTES || bytes[0] !== FORMAT) {
        throw unreadable(context, "it has an unknown format");
      }
      if (!bytes.subarray(1, 1 + KEY_ID_BYTES).equals(keyId)) {
        throw unreadable(context, "it was encrypted under another key-encryption key");
      }
      try {
        const dataKey = decrypt(kek, associated(context, "key"), bytes.subarray(1 + KEY_ID_BYTES, HEADER_BYTES));
        const plain = decrypt(dataKey, associated(context, "value"), bytes.subarray(HEADER_BYTES));
        dataKey.fill(0);
        return plain;
      } catch (cause) {
        throw unreadable(context, "it was altered or belongs elsewhere", cause);
      }
    },
  };
}

function unreadable(context: SecretContext, why: string, cause?: unknown): RuntimeError {
  return new RuntimeError(
    "secret_unreadable",
    `the stored ${context.purpose} "${context.key}" cannot be opened: ${why}`,
    {
      next: "Restore the key-encryption key that belongs to this database, or set the value again",
      cause,
    },
  );
}

/** Length-prefixed parts, so that no two contexts give the same bytes. */
function associated(context: SecretContext, part: "key" | "value"): Buffer {
  const fields = [
    "openshell sealed v1",
    part,
    context.purpose,
    context.workspace,
    context.owner,
    context.key,
    context.version.toString(),
  ];
  return Buffer.concat(
    fields.map((field) => {
      const text = Buffer.from(field);
      const length = Buffer.alloc(4);
      length.writeUInt32BE(text.length);
      return Buffer.concat([length, text]);
    }),
  );
}

function encrypt(key: Buffer, aad: Buffer, plain: Buffer): Buffer {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv("aes-256-gcm", key, nonce, { authTagLength: TAG_BYTES }).setAAD(aad);
  return Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
}

function decrypt(key: Buffer, aad: Buffer, bytes: Buffer): Buffer {
  const nonce = bytes.subarray(0, NONCE_BYTES);
  const tag = bytes.subarray(bytes.length - TAG_BYTES);
  const decipher = createDecipheriv("aes-256-gcm", key, nonce, { authTagLength: TAG_BYTES })
    .setAAD(aad)
    .setAuthTag(tag);
  // Of this mode `final` only verifies. Its own memory: in a pool a few bytes that are kept would keep 64 KB with them.
  const plain = decipher.update(bytes.subarray(NONCE_BYTES, bytes.length - TAG_BYTES));
  decipher.final();
  return plain;
}

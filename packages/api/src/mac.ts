/**
 * A keyed pseudo-random function, in practice HMAC-SHA-256, over some bytes. Passed in, so that this package needs no crypto module and a server
 * can use a synchronous implementation on hot paths.
 */
export type Mac = (data: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/** Bytes that a {@link Mac} must at least return. */
export const MIN_MAC_BYTES = 32;

/** HMAC-SHA-256 through WebCrypto. `key`: 32 random bytes or more. */
export async function webCryptoMac(key: Uint8Array<ArrayBuffer>): Promise<Mac> {
  if (key.length < MIN_MAC_BYTES) throw new RangeError(`a MAC key needs at least ${MIN_MAC_BYTES} bytes`);
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return async (data) => new Uint8Array(await crypto.subtle.sign("HMAC", imported, new Uint8Array(data)));
}

/**
 * Runs `mac` over `parts`, each preceded by its length, after a domain string: no two lists of parts give the same input, and no use of a key can
 * be mistaken for another.
 */
export async function macOf(mac: Mac, domain: string, parts: readonly (Uint8Array | string)[]): Promise<Uint8Array> {
  const encoder = new TextEncoder();
  const chunks = [domain, ...parts].map((part) => (typeof part === "string" ? encoder.encode(part) : part));
  const total = chunks.reduce((sum, chunk) => sum + 4 + chunk.length, 0);
  const input = new Uint8Array(total);
  const view = new DataView(input.buffer);
  let offset = 0;
  for (const chunk of chunks) {
    view.setUint32(offset, chunk.length);
    input.set(chunk, offset + 4);
    offset += 4 + chunk.length;
  }
  const tag = await mac(input);
  if (tag.length < MIN_MAC_BYTES) throw new RangeError(`a MAC must have at least ${MIN_MAC_BYTES} bytes`);
  return tag;
}

/** Compares two byte strings in time that depends on their lengths alone. */
export function equalBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let difference = 0;
  for (let index = 0; index < a.length; index++) difference |= a[index]! ^ b[index]!;
  return difference === 0;
}

/**
 * What the agent holds instead of a credential: text that names a key and, for credentials bound to endpoints, the epoch
 * of its identity, so that a process that outlived a replaced credential cannot pick up its successor.
 *
 *   openshell:resolve:env:KEY                canonical
 *   openshell:resolve:env:v<digits>_KEY      with an epoch
 *   openshell:resolve:env:s<64 hex>_KEY      with a handle that survives rotation
 *   <prefix>OPENSHELL-RESOLVE-ENV-<any of the above after the prefix>   for programs that check the shape of a key
 */

export const MARKER = "openshell:resolve:env:";
export const ALIAS_MARKER = "OPENSHELL-RESOLVE-ENV-";

export interface Placeholder {
  readonly key: string;
  /** Decimal epoch of the `v` form. */
  readonly epoch: string | undefined;
  /** Handle of the `s` form. */
  readonly handle: string | undefined;
  readonly alias: boolean;
}

const BODY = "(?:v(?<epoch>[0-9]{1,20})_|s(?<handle>[0-9a-f]{64})_)?(?<key>[A-Za-z_][A-Za-z0-9_]*)";
const WHOLE = new RegExp(`^${MARKER}${BODY}$`);
const WHOLE_ALIAS = new RegExp(`^[A-Za-z0-9_.~-]+${ALIAS_MARKER}${BODY}$`);

/** Environment names that look like a qualified placeholder body would be ambiguous. */
const RESERVED_NAME = /^(?:v[0-9]+_|s[0-9a-f]{64}_)/;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

export function isEnvironmentName(name: string): boolean {
  return NAME.test(name) && name.length <= 256;
}

export function isReservedName(name: string): boolean {
  return RESERVED_NAME.test(name);
}

export function formatPlaceholder(key: string, epoch?: string, handle?: string): string {
  if (handle !== undefined) return `${MARKER}s${handle}_${key}`;
  return epoch === undefined ? `${MARKER}${key}` : `${MARKER}v${epoch}_${key}`;
}

/** Reads a text that is a placeholder as a whole. */
export function parsePlaceholder(text: string): Placeholder | undefined {
  const canonical = WHOLE.exec(text);
  const match = canonical ?? WHOLE_ALIAS.exec(text);
  if (match === null) return undefined;
  const { key, epoch, handle } = match.groups as { key: string; epoch?: string; handle?: string };
  return { key, epoch, handle, alias: canonical === null };
}

/** Canonical placeholders inside a text, leftmost first and as long as possible. Aliases count as whole tokens only. */
export function splitPlaceholders(
  text: string,
): { readonly text: string; readonly placeholder: Placeholder | undefined }[] {
  const parts: { text: string; placeholder: Placeholder | undefined }[] = [];
  const pattern = new RegExp(`${MARKER}${BODY}`, "g");
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > at) parts.push({ text: text.slice(at, match.index), placeholder: undefined });
    parts.push({ text: match[0], placeholder: parsePlaceholder(match[0]) });
    at = match.index + match[0].length;
  }
  if (at < text.length) parts.push({ text: text.slice(at), placeholder: undefined });
  return parts;
}

/** True when the text holds a marker, also when (part of) it is percent-encoded, once or twice. */
export function containsMarker(text: string): boolean {
  let current = text;
  for (let round = 0; round < 3; round += 1) {
    if (current.includes(MARKER) || current.includes(ALIAS_MARKER)) return true;
    if (!current.includes("%")) return false;
    const decoded = current.replaceAll(/%([0-9A-Fa-f]{2})/g, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    if (decoded === current) return false;
    current = decoded;
  }
  return false;
}

/** Every placeholder in a text, and every alias token, replaced: for logs and for what a policy is asked about. */
export function redactPlaceholders(text: string, replacement: string): string {
  return text
    .replaceAll(new RegExp(`${MARKER}[A-Za-z0-9_]*`, "g"), replacement)
    .replaceAll(new RegExp(`[A-Za-z0-9_.~-]*${ALIAS_MARKER}[A-Za-z0-9_]*`, "g"), replacement);
}

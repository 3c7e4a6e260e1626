/** Text of events: whatever the agent chose must not break a line, reorder it or look like another field. */
import { escapeUntrusted } from "@openshell/base/escape.ts";

/** Bytes of a reason in a shorthand line. */
export const REASON_BYTES = 256;
/** Bytes of a message in a shorthand line. */
export const MESSAGE_BYTES = 120;
/** Characters of any one text in a JSON record. */
export const FIELD_LENGTH = 4096;

/** A value inside a line: white space, brackets and backslashes become `\u{hex}`, so that it stays one token. */
export function token(text: string, maxLength = 512): string {
  const escaped = escapeUntrusted(text.slice(0, maxLength), maxLength * 6).replace(
    /[\s[\]]/g,
    (character) => `\\u{${character.charCodeAt(0).toString(16)}}`,
  );
  return text.length > maxLength ? `${escaped}…` : escaped;
}

/** A sentence inside a line: line ends become spaces, other controls are escaped, at most `bytes` bytes of UTF-8. */
export function sentence(text: string, bytes: number): string {
  return truncate(escapeUntrusted(text.replace(/[\r\n]+/g, " "), FIELD_LENGTH), bytes);
}

/** A text in JSON: escapes what reorders or breaks lines for whoever prints it. */
export function field(text: string): string {
  return escapeUntrusted(text, FIELD_LENGTH);
}

/** Cuts at a character border and marks the cut. */
export function truncate(text: string, bytes: number): string {
  const encoded = new TextEncoder().encode(text);
  if (encoded.length <= bytes) return text;
  let end = bytes;
  while (end > 0 && ((encoded[end] as number) & 0xc0) === 0x80) end -= 1;
  return `${new TextDecoder().decode(encoded.subarray(0, end))}...`;
}

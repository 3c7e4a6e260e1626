const utf8 = new TextEncoder();

// C0, DEL and C1 controls, line and paragraph separators, bidi embeddings, overrides, isolates and marks, lone surrogates.
const CONTROLS =
  /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * Text that a caller may have chosen, fit to be shown on a terminal: control and direction characters escaped, at most
 * `maxLength` characters and an ellipsis.
 */
export function shown(text: string, maxLength: number): string {
  // Cut first: the caller may have sent megabytes.
  const head = text.length > maxLength ? text.slice(0, maxLength + 1) : text;
  const escaped = escapeControls(head);
  return escaped.length <= maxLength ? escaped : `${wholeCharacters(escaped, maxLength)}…`;
}

/** As {@link shown} without a limit, for texts of our own that quote others. `keepLineEnds`: they are the text's layout. */
export function escapeControls(text: string, keepLineEnds = false): string {
  return text.replace(CONTROLS, (character) => {
    const code = character.charCodeAt(0);
    if (keepLineEnds && character === "\n") return character;
    return code <= 0xff ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Bytes of a text in UTF-8. */
export function utf8Length(text: string): number {
  return utf8.encode(text).length;
}

/** The text, or its beginning with an ellipsis so that the whole has at most `maxBytes` bytes of UTF-8. */
export function cutBytes(text: string, maxBytes: number): string {
  if (utf8Length(text) <= maxBytes) return text;
  const bytes = new Uint8Array(Math.max(0, maxBytes - 3));
  const { read } = utf8.encodeInto(text, bytes);
  return `${text.slice(0, read)}…`;
}

/** The first characters, without half a surrogate pair at the end. */
function wholeCharacters(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? length - 1 : length);
}

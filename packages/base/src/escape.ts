/**
 * Whatever an agent chose (paths, names, its output quoted in an error) goes through here before it reaches a log, an
 * error or a table: control characters, line ends and bidirectional overrides become visible escapes, so that nobody can
 * forge a line or reorder what a person reads.
 */
export function escapeUntrusted(text: string, maxLength = 512): string {
  const escaped = text.replace(
    // C0, DEL and C1 controls, line and paragraph separators, bidi embeddings, overrides, isolates and marks, lone surrogates.
    /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
    (character) => {
      const code = character.charCodeAt(0);
      return code <= 0xff ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
    },
  );
  return escaped.length <= maxLength ? escaped : `${escaped.slice(0, maxLength)}…`;
}

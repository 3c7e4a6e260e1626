/**
 * A text as the characters U+0000–U+00FF that stand for its UTF-8 bytes: how field lines are held and written. Written as
 * Latin-1 directly, a character beyond U+00FF would lose its upper byte, and U+010A would become a line end.
 */
export function toByteText(text: string): string {
  if (/^[\x00-\x7f]*$/.test(text)) return text;
  let result = "";
  for (const byte of new TextEncoder().encode(text)) result += String.fromCharCode(byte);
  return result;
}

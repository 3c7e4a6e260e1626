/** Base64 of UTF-8 text with the web's own functions: this package runs without Node. */
declare function atob(text: string): string;
declare function btoa(text: string): string;

/** Undefined when the text is no base64 of UTF-8. */
export function base64Decode(text: string): string | undefined {
  try {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

export function base64Encode(text: string): string {
  let binary = "";
  for (const byte of new TextEncoder().encode(text)) binary += String.fromCharCode(byte);
  return btoa(binary);
}

import { escapeUntrusted } from "@openshell/base/escape.ts";

const PLAIN = /^[\x20-\x7e]*$/;

/** `escapeUntrusted` with a short way for the usual case: denials are as frequent as the agent likes. */
export function escapeText(text: string, maxLength = 512): string {
  return text.length <= maxLength && PLAIN.test(text) ? text : escapeUntrusted(text, maxLength);
}

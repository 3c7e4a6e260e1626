import { escapeUntrusted } from "@openshell/base/escape.ts";

/** `2026-03-01 12:00:00` (UTC) of an RFC 3339 time; `-` when absent or unreadable. */
export function formatTime(time: unknown): string {
  if (typeof time !== "string") return "-";
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? "-" : date.toISOString().slice(0, 19).replace("T", " ");
}

/** Text from elsewhere as one safe line; `-` when empty. */
export function cell(text: unknown): string {
  return typeof text === "string" && text !== "" ? escapeUntrusted(text) : "-";
}

/** Writes and resolves once the stream took it, so that a reader sets the pace and nothing is lost at exit. */
export function writeAll(stream: NodeJS.WritableStream, data: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    stream.write(data, (error) => (error ? reject(error) : resolve()));
  });
}

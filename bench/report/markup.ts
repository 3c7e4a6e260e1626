/** Text as it stands between tags and in quoted attributes of HTML and SVG. */
export function escapeText(text: string): string {
  return text
    .replace(/[&<>"'`]/g, (sign) => `&#${sign.charCodeAt(0)};`)
    .replace(/[\0-\x08\x0B\x0C\x0E-\x1F\x7F]/g, "�");
}

/** At most `limit` characters. */
export function shorten(text: string, limit: number): string {
  const characters = [...text];
  return characters.length <= limit
    ? text
    : `${characters
        .slice(0, limit - 1)
        .join("")
        .trimEnd()}…`;
}

/** Three figures that count, thousands apart. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  const text = value.toLocaleString("en", { maximumFractionDigits: digits });
  return text === "-0" ? "0" : text;
}

export function withUnit(value: number, unit: string): string {
  return unit === "count" ? number(value) : `${number(value)} ${unit}`;
}

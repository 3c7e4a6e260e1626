import type { Style } from "./style.ts";

/** A cell: its text (already escaped), and how it is coloured. */
export interface Cell {
  readonly text: string;
  readonly paint?: (text: string) => string;
}

/** Columns two spaces apart, left aligned, as wide as their widest cell; no spaces at the end of a line. Ends with a line end. */
export function renderTable(
  headers: readonly string[],
  rows: readonly (readonly (string | Cell)[])[],
  style: Style,
): string {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === "string" ? { text: cell } : cell)));
  const widths = headers.map((header, index) =>
    Math.max(header.length, ...cells.map((row) => [...(row[index]?.text ?? "")].length)),
  );
  const line = (row: readonly Cell[]): string =>
    row
      .map((cell, index) => {
        const last = index === row.length - 1;
        const padding = last ? "" : " ".repeat(widths[index]! - [...cell.text].length);
        return (cell.paint === undefined ? cell.text : cell.paint(cell.text)) + padding;
      })
      .join("  ")
      .trimEnd();
  const head = line(headers.map((text) => ({ text, paint: style.bold })));
  return `${[head, ...cells.map(line)].join("\n")}\n`;
}

/** A detail view: a title, and labelled lines. */
export function renderDetails(title: string, lines: readonly (readonly [string, string])[], style: Style): string {
  const body = lines.map(([label, value]) => `  ${style.dim(`${label}:`)} ${value}`);
  return `${style.bold(style.cyan(title))}\n\n${body.join("\n")}\n`;
}

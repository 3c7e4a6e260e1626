import type { Style } from "./style.ts";

/** A cell: its text (already escaped), and how it is coloured. */
export interface Cell {
  readonly text: string;
  readonly paint?: (text: string) => string;
}

/** `widths` grown to hold these rows. */
export function columnWidths(
  widths: readonly number[],
  rows: readonly (readonly (string | Cell)[])[],
): readonly number[] {
  const length = (cell: string | Cell | undefined): number =>
    [...(typeof cell === "string" ? cell : (cell?.text ?? ""))].length;
  return widths.map((width, index) => rows.reduce((most, row) => Math.max(most, length(row[index])), width));
}

/** One line: columns two spaces apart, left aligned; no spaces at the end. */
export function tableLine(row: readonly (string | Cell)[], widths: readonly number[]): string {
  return row
    .map((item, index) => {
      const cell: Cell = typeof item === "string" ? { text: item } : item;
      const last = index === row.length - 1;
      const padding = last ? "" : " ".repeat(widths[index]! - [...cell.text].length);
      return (cell.paint === undefined ? cell.text : cell.paint(cell.text)) + padding;
    })
    .join("  ")
    .trimEnd();
}

/** A detail view: a title, and labelled lines. */
export function renderDetails(title: string, lines: readonly (readonly [string, string])[], style: Style): string {
  const body = lines.map(([label, value]) => `  ${style.dim(`${label}:`)} ${value}`);
  return `${style.bold(style.cyan(title))}\n\n${body.join("\n")}\n`;
}

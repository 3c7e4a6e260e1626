import type { Context } from "../context.ts";
import type { Json } from "../transport/unary.ts";
import { type Cell, columnWidths, tableLine } from "./table.ts";

export type Row = readonly (string | Cell)[];

/** How the entries of a list are written. */
export interface ListForm<T> {
  readonly collection: string;
  readonly structured: (view: T) => Json;
  readonly line: ((view: T) => string) | undefined;
  readonly headers: readonly string[];
  readonly row: (view: T) => Row;
  readonly empty: string;
}

/**
 * Writes a list as its pages arrive and holds none of them. A table's columns are as wide as what has been seen so far; structured
 * output is one document that is complete with {@link end}.
 */
export class ListWriter<T> {
  readonly #context: Context;
  readonly #form: ListForm<T>;
  #count = 0;
  #widths: readonly number[];

  constructor(context: Context, form: ListForm<T>) {
    this.#context = context;
    this.#form = form;
    this.#widths = form.headers.map((header) => header.length);
  }

  async write(views: readonly T[]): Promise<void> {
    if (views.length === 0) return;
    const format = this.#context.outputFormat;
    const text = format === "table" ? this.#text(views) : await this.#structured(views, format);
    this.#count += views.length;
    await this.#context.print(text);
  }

  async end(nextPageToken: string): Promise<void> {
    const { collection, empty, line } = this.#form;
    const format = this.#context.outputFormat;
    const nothing = this.#count === 0;
    if (format === "json") {
      const close = nothing ? `{\n  ${JSON.stringify(collection)}: []` : "\n  ]";
      await this.#context.print(`${close},\n  "next_page_token": ${JSON.stringify(nextPageToken)}\n}\n`);
    } else if (format === "yaml") {
      const head = nothing ? `${collection}: []\n` : "";
      await this.#context.print(`${head}next_page_token: ${JSON.stringify(nextPageToken)}\n`);
    } else if (nothing && line === undefined) {
      await this.#context.print(empty);
    }
  }

  #text(views: readonly T[]): string {
    const { line, row, headers } = this.#form;
    if (line !== undefined) return views.map((view) => `${line(view)}\n`).join("");
    const style = this.#context.out;
    const rows = views.map(row);
    this.#widths = columnWidths(this.#widths, rows);
    const head = this.#count > 0 ? [] : [headers.map((text) => ({ text, paint: style.bold }))];
    return [...head, ...rows].map((cells) => `${tableLine(cells, this.#widths)}\n`).join("");
  }

  async #structured(views: readonly T[], format: "json" | "yaml"): Promise<string> {
    const { collection, structured } = this.#form;
    const values = views.map(structured);
    if (format === "json") {
      const items = values.map((value) => `    ${JSON.stringify(value, undefined, 2).replaceAll("\n", "\n    ")}`);
      const open = this.#count === 0 ? `{\n  ${JSON.stringify(collection)}: [\n` : ",\n";
      return open + items.join(",\n");
    }
    const { toYaml } = await import("./structured.ts");
    const body = toYaml({ [collection]: values });
    return this.#count === 0 ? body : body.slice(body.indexOf("\n") + 1);
  }
}

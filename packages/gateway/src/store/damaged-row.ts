/**
 * Reads the parts of one row. A part that cannot be read gets a stand-in, so that one damaged row does not keep the others
 * from being read; whoever makes a record of it says what is damaged.
 */
export class RowReader {
  readonly #damaged: string[] = [];

  /** Names of the parts that could not be read. */
  get damaged(): readonly string[] {
    return this.#damaged;
  }

  read<T>(part: string, decode: () => T, standIn: T): T {
    try {
      return decode();
    } catch {
      this.#damaged.push(part);
      return standIn;
    }
  }

  /** A JSON object whose values are texts. */
  texts(part: string, json: string): Readonly<Record<string, string>> {
    return this.read(
      part,
      () => {
        const value: unknown = JSON.parse(json);
        const object = typeof value === "object" && value !== null && !Array.isArray(value);
        if (!object || !Object.values(value).every((each) => typeof each === "string")) throw new Error("no texts");
        return value as Record<string, string>;
      },
      {},
    );
  }
}

/** What is said of such a row. */
export function damagedText(parts: readonly string[]): string {
  return `its record in the gateway's database is damaged (${parts.join(", ")}): restore the database from a backup, or delete it`;
}

/** Annotation of an object without a status whose row is damaged. */
export const DAMAGED_ANNOTATION = "openshell.io/damaged-record";

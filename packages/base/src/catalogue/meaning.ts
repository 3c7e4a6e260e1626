/** What a stable code says, and what whoever meets it can do: each one line. */
export type Meaning = readonly [meaning: string, next: string];

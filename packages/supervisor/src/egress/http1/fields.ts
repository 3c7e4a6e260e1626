/** Field lines of one message, in order, as received. Values are bytes kept as latin1 characters, so they go out as they came in. */
export class Fields {
  readonly names: string[] = [];
  /** Lower-case names, index by index. */
  readonly keys: string[] = [];
  readonly values: string[] = [];

  get length(): number {
    return this.names.length;
  }

  add(name: string, value: string, key = name.toLowerCase()): void {
    this.names.push(name);
    this.keys.push(key);
    this.values.push(value);
  }

  /** The first value. */
  get(key: string): string | undefined {
    const index = this.keys.indexOf(key);
    return index === -1 ? undefined : this.values[index];
  }

  has(key: string): boolean {
    return this.keys.includes(key);
  }

  getAll(key: string): string[] {
    const found: string[] = [];
    for (let i = 0; i < this.keys.length; i += 1) if (this.keys[i] === key) found.push(this.values[i]!);
    return found;
  }

  remove(key: string): void {
    for (let i = this.keys.length - 1; i >= 0; i -= 1) {
      if (this.keys[i] !== key) continue;
      this.names.splice(i, 1);
      this.keys.splice(i, 1);
      this.values.splice(i, 1);
    }
  }

  /** Replaces every line of that name by one at the end. */
  set(name: string, value: string): void {
    this.remove(name.toLowerCase());
    this.add(name, value);
  }

  clone(): Fields {
    const copy = new Fields();
    copy.names.push(...this.names);
    copy.keys.push(...this.keys);
    copy.values.push(...this.values);
    return copy;
  }
}

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

export function isToken(text: string): boolean {
  return TOKEN.test(text);
}

/** Members of a comma-separated list of tokens, lower case; undefined when one is not a token. Empty members are allowed (RFC 9110 §5.6.1). */
export function tokenList(values: readonly string[]): string[] | undefined {
  const tokens: string[] = [];
  for (const value of values) {
    for (const part of value.split(",")) {
      const token = part.replace(/^[ \t]+|[ \t]+$/g, "");
      if (token === "") continue;
      if (!isToken(token)) return undefined;
      tokens.push(token.toLowerCase());
    }
  }
  return tokens;
}

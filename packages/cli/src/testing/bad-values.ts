import type { CommandSpec, Flag, Positional } from "../args.ts";

/**
 * What every option and argument is tried with. Options are known by the placeholder of their value: `BY_PLACEHOLDER` says for each
 * what is right and what can only be wrong. An option with a placeholder that is not there fails the tests until it is.
 */

/** Stands in every value that may be a credential, and may be in no output. */
export const SECRET = "hunter2hunter2";
export const MEBIBYTE = 1024 * 1024;

/** Values that no option was made for. */
export const STRANGE: Readonly<Record<string, string>> = {
  huge: "x".repeat(MEBIBYTE),
  "huge number": "9".repeat(400),
  blank: " ",
  tab: "\t",
  "line ends": "a\nb\r\nerror: forged\n  next: forged",
  escape: "\u001b[2J\u001b]0;title\u0007",
  C1: "a\u009b31mb\u0085",
  bidi: "\u202eevil\u2066x\u2069\u200f",
  "byte order mark": "\ufeffname",
  NUL: "a\0b",
  "lone surrogate": "a\ud800b",
  emoji: "🦀".repeat(40),
  negative: "-1",
  NaN: "NaN",
  infinite: "Infinity",
  overflow: "1e309",
  hexadecimal: "0x10",
  fraction: "1.5",
  "beyond 64 bits": "18446744073709551616",
  prototype: "__proto__",
  constructor: "constructor",
  format: "%s%n%d{}$(id)`id`",
  path: "../../../../etc/passwd",
  quotes: `'"\\`,
  "own flag": "--help",
};

interface Kind {
  readonly right: string;
  /** Refused as wrong use, before anything is sent. */
  readonly wrong?: readonly string[];
  /** As `wrong`, and all of {@link STRANGE} with it. */
  readonly strict?: boolean;
  /** Its values may hold credentials. */
  readonly secret?: boolean;
}

const PORTS = ["0", "65536", "-1", "443.0", "0443x", " 443", "٤٤٣"];
const COUNTS = ["-1", "1.0", "1e3", "+1", "1 ", "0x1", "١", "9007199254740993"];
const PAIRS = ["", "=", `=${SECRET}`, SECRET];

export const BY_PLACEHOLDER: Readonly<Record<string, Kind>> = {
  NAME: { right: "dev" },
  SANDBOX: { right: "dev" },
  TYPE: { right: "generic" },
  FILE: { right: "policy.yaml" },
  ROOT: { right: "root" },
  URL: {
    right: "http://127.0.0.1:1",
    wrong: [`https://me:${SECRET}@host:1`, "ftp://h", "https://", "http://:80", "https://h:99999"],
  },
  "SRC:DST[:ro]": { right: "/a:/b", strict: true, wrong: ["a", ":/b", "/a:", "/a:b", "/a:/b:rx", "/a:/b:ro:x"] },
  "KEY=VALUE": { right: "A=1", wrong: PAIRS, secret: true },
  "KEY[=VALUE]": { right: "A=1", wrong: [`=${SECRET}`, `1A=${SECRET}`, `a-b=${SECRET}`, `${SECRET}-`], secret: true },
  "KEY=TIME": {
    right: "A=2030-01-01T00:00:00Z",
    strict: true,
    wrong: [
      "A",
      "A=",
      "A=soon",
      "A=-1",
      "A=2030-02-30T00:00:00Z",
      "A=1e12",
      "A=275760-09-13T00:00:00Z",
      "A=99999999999999999",
      "A=2030-01-01",
    ],
  },
  QUANTITY: { right: "2" },
  LAYERS: { right: "confined" },
  PATH: { right: "/bin/true" },
  ID: { right: "11111111-1111-4111-8111-111111111111" },
  N: { right: "1", strict: true, wrong: COUNTS },
  "[N]": { right: "1", strict: true, wrong: ["0", ...COUNTS] },
  SECONDS: { right: "1", strict: true, wrong: COUNTS },
  PORT: { right: "443", strict: true, wrong: PORTS },
  DURATION: { right: "5m", strict: true, wrong: ["5", "m", "-5m", "5.5m", "5d", "99999999999h", "5m "] },
  FORMAT: { right: "json", strict: true },
  WHEN: { right: "never", strict: true },
  MODE: { right: "strip", strict: true },
  SOURCE: { right: "all", strict: true },
  LEVEL: { right: "info", strict: true },
  WHAT: { right: "keep", strict: true },
  JSON: {
    right: "{}",
    strict: true,
    wrong: ["[]", "null", "1", '{"a":', "[".repeat(100_000), `${'{"a":'.repeat(50_000)}1${"}".repeat(50_000)}`],
    secret: true,
  },
  TOKEN: { right: "t" },
  KEY: { right: "ocsf_json_enabled", strict: true, wrong: ["policy", "OCSF_JSON_ENABLED", "ocsf_json_enabled "] },
  VALUE: { right: "true", strict: true, wrong: ["2", "maybe", "true ", "null", "manual"] },
  "K=V,…": { right: "a=b" },
  HOST: { right: "a.example.com" },
  METHOD: { right: "GET" },
  ENDPOINT: {
    right: "a.example.com:443",
    strict: true,
    wrong: [
      "a",
      ...PORTS.map((port) => `a:${port}`),
      "a:1:all",
      "a:1:full:smtp",
      "a:1:full:rest:maybe",
      "a:1:full:rest:audit:what",
      "[::1:1",
    ],
  },
  "HOST:PORT": { right: "a.example.com:443", strict: true, wrong: ["a", ...PORTS.map((port) => `a:${port}`), "a:1:2"] },
  REQUEST: {
    right: "a.example.com:443:GET:/x",
    strict: true,
    wrong: ["a:1", "a:1:GET", "a:1::/", "a:1:GET:x", "a:0:GET:/", "a:1,:GET:/"],
  },
};

/** The rest of a command line under which an option is looked at. `words` stand in place of the positionals. */
export interface Base {
  readonly words?: readonly string[];
  readonly flags?: Readonly<Record<string, string | true>>;
  readonly command?: readonly string[];
}

/** What commands need beside the option that is tried, by their words. */
export const BASES: Readonly<Record<string, Base>> = {
  run: { command: ["true"] },
  completions: { words: ["bash"] },
  "sandbox create": { flags: { detach: true }, command: ["true"] },
  "sandbox exec": { words: ["dev"], command: ["true"] },
  "sandbox delete": { words: ["dev"] },
  "policy set": { words: ["dev"], flags: { policy: "policy.yaml" } },
  "policy update": { words: ["dev"], flags: { "add-endpoint": "a.example.com:443:full:rest", binary: "/bin/x" } },
  "policy delete": { flags: { global: true, yes: true } },
  "policy explain": { words: ["dev"], flags: { host: "a.example.com" } },
  "policy validate": { words: ["policy.yaml"] },
  "settings set": { words: ["dev"], flags: { key: "ocsf_json_enabled", value: "true" } },
  "settings delete": { words: ["dev"], flags: { key: "ocsf_json_enabled" } },
  "provider create": { flags: { name: "p", type: "generic", credential: `A=${SECRET}` } },
  "provider get": { words: ["p"] },
  "provider update": { words: ["p"], flags: { credential: `A=${SECRET}` } },
  "provider delete": { words: ["p"] },
};

/** Options that others must stand beside, or instead of. */
const BESIDE: Readonly<Record<string, Readonly<Record<string, string | undefined>>>> = {
  "sandbox create --expose-authorization-mode": { expose: "80" },
  "sandbox exec --name": { SANDBOX: undefined },
  "policy update --add-allow": { "rule-name": "r", "add-endpoint": undefined },
  "policy update --add-deny": { "rule-name": "r", "add-endpoint": undefined },
};

export const titleOf = (spec: CommandSpec): string => spec.path.join(" ");

/** A command line that lacks nothing, with `given` put in place of what it says of those options. */
export function lineOf(spec: CommandSpec, given: readonly string[], flag?: Flag, words?: readonly string[]): string[] {
  const title = titleOf(spec);
  const base = BASES[title] ?? {};
  const beside = flag === undefined ? {} : (BESIDE[`${title} --${flag.long}`] ?? {});
  const flags = new Map<string, string | true | undefined>(Object.entries({ ...base.flags, ...beside }));
  const instead = new Set([flag?.long, ...(flag?.conflicts ?? [])]);
  const conflicting = spec.flags.filter(({ conflicts }) => flag !== undefined && conflicts?.includes(flag.long));
  for (const { long } of conflicting) instead.add(long);
  const options = [...flags].flatMap(([long, value]) => {
    if (value === undefined || instead.has(long) || !spec.flags.some((item) => item.long === long)) return [];
    return value === true ? [`--${long}`] : [`--${long}=${value}`];
  });
  const named = (spec.positionals ?? []).some(({ name }) => name in beside) ? [] : (base.words ?? defaultWords(spec));
  const command = base.command === undefined ? [] : ["--", ...base.command];
  return [...spec.path, ...(words ?? named), ...options, ...given, ...command];
}

function defaultWords(spec: CommandSpec): readonly string[] {
  return (spec.positionals ?? []).filter(({ required }, index) => index === 0 || required === true).map(() => "dev");
}

/** Values for an option, by what is wrong with them. `refused`: whatever takes them takes too much. */
export function badValues(item: Flag | Positional): readonly { what: string; value: string; refused: boolean }[] {
  const placeholder = "long" in item ? (item.value ?? "") : item.name;
  const kind = BY_PLACEHOLDER[placeholder] ?? { right: "", strict: item.choices !== undefined };
  const strict = kind.strict === true || item.choices !== undefined;
  const strange = Object.entries(STRANGE).map(([what, value]) => ({ what, value, refused: strict }));
  const secrets = kind.secret === true ? strange.map((entry) => ({ ...entry, value: `${entry.value}=${SECRET}` })) : [];
  const wrong = (kind.wrong ?? []).map((value) => ({ what: `wrong ${value.slice(0, 40)}`, value, refused: true }));
  return [...strange, ...secrets.map((entry) => ({ ...entry, what: `${entry.what} as a key` })), ...wrong];
}

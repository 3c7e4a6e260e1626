import { DatabaseSync } from "node:sqlite";
import { type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { requestGaps } from "@openshell/api/compatibility-fields.ts";
import { readErrorDetails } from "@openshell/api/errors.ts";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, isBuilt, requestOf, rpcNames, sampleOf } from "./calls.ts";

/**
 * Every field of every built RPC, policies and changes of them too, with values that nobody should send. A field that is new is tried
 * as soon as the descriptor has it.
 */

/** Printed with every failure, so that a run can be repeated. */
const SEED = 20_261_130;
const RANDOM_RUNS = 400;
/** In every value that a request may hold a credential in. */
const SECRET = "hunter2hunter2";
/** More than any field takes, commands apart. Bytes. */
const HUGE = 80 * 1024;
/** A machine under load takes ten times as long. Milliseconds. */
const TIMEOUT_MS = 240_000;
/** Bytes that a status may have in the trailers of common clients. */
const MAX_TEXT = 2048;

const STRINGS: Readonly<Record<string, string>> = {
  empty: "",
  blank: " ",
  huge: "x".repeat(HUGE),
  long: "x".repeat(300),
  "line ends": "a\nb\r\nerror: forged",
  escape: "\u001b[2J\u001b]0;t\u0007",
  C1: "a\u009b31mb\u0085",
  bidi: "\u202eevil\u2066x",
  NUL: "a\0b",
  "byte order mark": "\ufeffx",
  "not a character": "\uffff\u{10ffff}",
  combining: "e\u0301".repeat(50),
  prototype: "__proto__",
  path: "../../../../etc/passwd",
  folder: "/",
  "much nested": "/a".repeat(5000),
  NaN: "NaN",
  negative: "-1",
  star: "**",
  regex: "(a+)+$".repeat(20),
};

const NUMBERS: Partial<Record<ScalarType, readonly (number | bigint)[]>> = {
  [ScalarType.INT32]: [-1, -2_147_483_648, 2_147_483_647],
  [ScalarType.SINT32]: [-1, -2_147_483_648, 2_147_483_647],
  [ScalarType.SFIXED32]: [-1, -2_147_483_648, 2_147_483_647],
  [ScalarType.UINT32]: [0, 4_294_967_295, 65_536, 2_147_483_648],
  [ScalarType.FIXED32]: [0, 4_294_967_295],
  [ScalarType.INT64]: [-1n, -(2n ** 63n), 2n ** 63n - 1n, 2n ** 53n + 1n],
  [ScalarType.SINT64]: [-1n, -(2n ** 63n), 2n ** 63n - 1n],
  [ScalarType.SFIXED64]: [-1n, -(2n ** 63n), 2n ** 63n - 1n],
  [ScalarType.UINT64]: [0n, 2n ** 64n - 1n, 2n ** 53n + 1n, 2n ** 63n],
  [ScalarType.FIXED64]: [0n, 2n ** 64n - 1n],
  [ScalarType.FLOAT]: [Number.NaN, Number.POSITIVE_INFINITY, -0, 1e38],
  [ScalarType.DOUBLE]: [Number.NaN, Number.NEGATIVE_INFINITY, -0, 1e308],
};

function nested(depth: number): object {
  let value: object = {};
  for (let level = 0; level < depth; level += 1) value = { a: value };
  return value;
}

/** Values of the well-known types; most of them are past their bounds. */
const MESSAGES: Readonly<Record<string, readonly [string, object][]>> = {
  "google.protobuf.Timestamp": [
    ["before the first", { seconds: -62_135_596_801n, nanos: 0 }],
    ["after the last", { seconds: 253_402_300_800n, nanos: 0 }],
    ["negative parts", { seconds: 0n, nanos: -1 }],
    ["extreme", { seconds: -(2n ** 63n), nanos: -2_147_483_648 }],
  ],
  "google.protobuf.Duration": [
    ["negative", { seconds: -1n, nanos: 0 }],
    ["too long", { seconds: 315_576_000_001n, nanos: 0 }],
    ["signs that differ", { seconds: 1n, nanos: -1 }],
    ["extreme", { seconds: 2n ** 63n - 1n, nanos: 2_147_483_647 }],
  ],
  "google.protobuf.Struct": [
    ["deep", nested(30)],
    ["wide", Object.fromEntries(Array.from({ length: 10_000 }, (_, index) => [`k${index}`, index]))],
    ["strange keys", JSON.parse('{"": 1, "__proto__": {"a": 1}, "\\u0000\\u001b": null, "constructor": []}')],
    ["a number that is none", { limits: { cpu: "NaN", memory: -1 }, local: { volumes: 1, root: 2 } }],
    ["lists in place of values", { limits: [], local: [], requests: null }],
  ],
};

interface Field {
  readonly path: string;
  readonly fields: readonly DescField[];
}

/** All fields of a message, at any depth; no type twice on one path. */
function everyField(schema: DescMessage, above: readonly DescField[] = []): readonly Field[] {
  return schema.fields.flatMap((field): Field[] => {
    const fields = [...above, field];
    const own = { path: fields.map(({ name }) => name).join("."), fields };
    const inner = field.message;
    const again =
      inner === undefined ||
      inner.typeName.startsWith("google.protobuf.") ||
      above.some(({ parent }) => parent === inner);
    return again || inner === schema ? [own] : [own, ...everyField(inner, fields)];
  });
}

/** Key of the entry that a map gets. */
const KEY = "TOKEN";

function withValue(request: object, [field, ...rest]: readonly DescField[], value: unknown): object {
  const { localName, oneof, fieldKind } = field!;
  const plain = request as Record<string, unknown>;
  if (rest.length === 0)
    return oneof === undefined
      ? { ...request, [localName]: value }
      : { ...request, [oneof.localName]: { case: localName, value } };
  const chosen =
    oneof === undefined ? plain[localName] : (plain[oneof.localName] as { value?: object } | undefined)?.value;
  const inner = (present: unknown): object => withValue((present as object | undefined) ?? {}, rest, value);
  const made =
    fieldKind === "list"
      ? [inner((chosen as unknown[] | undefined)?.[0])]
      : fieldKind === "map"
        ? Object.fromEntries([[KEY, inner((chosen as Record<string, unknown> | undefined)?.[KEY])]])
        : inner(chosen);
  return oneof === undefined
    ? { ...request, [localName]: made }
    : { ...request, [oneof.localName]: { case: localName, value: made } };
}

interface Bad {
  readonly what: string;
  readonly value: unknown;
  /** No field of this kind can mean it. */
  readonly refused: boolean;
}

const bad = (what: string, value: unknown, refused = false): Bad => ({ what, value, refused });

function singles(
  scalar: ScalarType | undefined,
  message: DescMessage | undefined,
  enumeration: boolean,
  secret: boolean,
): readonly Bad[] {
  if (enumeration) return [99, -1, 2_147_483_647].map((value) => bad(`enum ${value}`, value, true));
  if (message !== undefined) {
    const known = MESSAGES[message.typeName];
    return (
      known?.map(([what, value]) => bad(what, value, message.typeName !== "google.protobuf.Struct")) ?? [
        bad("empty message", {}),
      ]
    );
  }
  if (scalar === ScalarType.STRING)
    return Object.entries(STRINGS).map(([what, value]) =>
      bad(what, secret && value.length < HUGE ? value + SECRET : value),
    );
  if (scalar === ScalarType.BYTES)
    return [bad("no bytes", new Uint8Array()), bad("bytes", new Uint8Array(HUGE).fill(0xff))];
  return (NUMBERS[scalar!] ?? []).map((value) => bad(String(value), value));
}

/** Of the strings, those that a field within a policy is tried with: there are a hundred of these fields, checked in the same way. */
const IN_POLICIES: readonly string[] = [
  "empty",
  "long",
  "line ends",
  "escape",
  "bidi",
  "NUL",
  "prototype",
  "much nested",
  "star",
];

const POLICY_FIELDS: readonly string[] = ["policy", "merge_operations"];

/** What a field is tried with. */
function badValues(field: DescField): readonly Bad[] {
  const secret = ["credentials", "environment", "stdin"].includes(field.name);
  if (field.fieldKind === "list") {
    const items = singles(field.scalar, field.message, field.enum !== undefined, secret);
    const many = items[items.length > 2 ? 2 : 0]?.value ?? (field.message ? {} : true);
    const lengths = 3000;
    return [
      ...items.map(({ what, value, refused }) => bad(`[${what}]`, [value], refused)),
      bad(
        "too many",
        Array.from({ length: lengths }, (_, index) => (typeof many === "string" ? `n${index}` : many)),
      ),
      ...(typeof many === "string" ? [bad("twice", ["a", "a"])] : []),
    ];
  }
  if (field.fieldKind === "map") {
    const items = singles(field.scalar, field.message, field.enum !== undefined, secret);
    const value = field.message ? {} : field.scalar === ScalarType.STRING ? SECRET : 1;
    return [
      ...items.map(({ what, value: item, refused }) => bad(`{${what}}`, { [KEY]: item }, refused)),
      ...Object.entries(STRINGS).map(([what, key]) => bad(`key ${what}`, Object.fromEntries([[key, value]]))),
      bad("too many", Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`K${index}`, value]))),
    ];
  }
  return singles(field.scalar, field.message, field.fieldKind === "enum", secret);
}

/** Codes that a wrong value may be answered with, or that say that there was nothing wrong with it. */
const DOCUMENTED: readonly Code[] = [
  Code.InvalidArgument,
  Code.NotFound,
  Code.AlreadyExists,
  Code.FailedPrecondition,
  Code.Unimplemented,
  Code.Aborted,
  Code.OutOfRange,
];

const built = rpcNames.filter(isBuilt);
/** Nothing is to be started, stopped or removed here: these speak of what does not exist. */
const OF_NOTHING: ReadonlySet<RpcName> = new Set(["startSandbox", "stopSandbox", "deleteSandbox", "deleteProvider"]);

const credentials = { [KEY]: SECRET };
/** Fields that stand in place of a policy, with what a request that has them lacks. */
const IN_PLACE_OF_POLICY = /^(?:merge_operations|setting_|delete_setting)/;
const without = (request: object, path: string): object =>
  IN_PLACE_OF_POLICY.test(path) ? { ...request, policy: undefined } : request;
/** The gateway gives these itself, whatever a request says. */
const isOwn = (fields: readonly DescField[]): boolean =>
  fields.some(({ parent, name }) => requestGaps[`${parent.name}.${name}`]?.answer === "ignored");

/** Right in themselves, and of what exists or does not, so that nothing is made, started or removed. */
function sample(rpc: RpcName, path = ""): object {
  if (OF_NOTHING.has(rpc)) return sampleOf(rpc, { name: "nothing" });
  // Providers are looked for before policies are judged.
  if (rpc === "createSandbox")
    return sampleOf(rpc, path.startsWith("spec.policy") ? {} : { spec: { providers: ["nothing"] } });
  if (rpc === "createProvider")
    return sampleOf(rpc, { provider: { metadata: { name: "p" }, type: "generic", credentials } });
  return sampleOf(rpc);
}

describe("bad values in requests", () => {
  let gateway: Harness;
  let database: DatabaseSync;
  beforeAll(async () => {
    gateway = await Harness.open();
    gateway.limitMs = TIMEOUT_MS;
    await gateway.create({ name: "x", spec: { policy: { version: 1 } } });
    await gateway.phase(SandboxPhase.READY, "x");
    // Nothing changes a stopped sandbox but what the test does.
    await gateway.client.stopSandbox({ ...inWorkspace("default"), name: "x" });
    await gateway.phase(SandboxPhase.STOPPED, "x");
    await gateway.client.createProvider({
      ...inWorkspace("default"),
      provider: { metadata: { name: "p" }, type: "generic", credentials },
    });
    database = new DatabaseSync(gateway.databasePath, { readOnly: true });
  });
  afterAll(async () => {
    database.close();
    await gateway[Symbol.asyncDispose]();
  });

  /** Changes with every commit of somebody else: the gateway's own. */
  const commits = (): unknown => database.prepare("PRAGMA data_version").get()?.["data_version"];

  /** Everything that is stored, as text by table. */
  function stored(): Map<string, string> {
    const tables = database.prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").all();
    const rows = (name: string) => database.prepare(`SELECT * FROM "${name}"`).all();
    return new Map(tables.map(({ name }) => [String(name), JSON.stringify(rows(String(name)))]));
  }

  let known = { at: undefined as unknown, tables: new Map<string, string>() };
  /** Tables that hold something else than at the last look. A commit that changes nothing is none. */
  function changed(): readonly string[] {
    const at = commits();
    if (at === known.at) return [];
    const { tables } = known;
    known = { at, tables: stored() };
    return [...known.tables].flatMap(([name, text]) => (tables.get(name) === text ? [] : [name]));
  }

  /** What is wrong with the answer to a request; undefined when nothing is. */
  async function judge(rpc: RpcName, request: object, path: string, refused: boolean): Promise<string | undefined> {
    changed();
    const { error } = await call(gateway, rpc, request as never);
    if (error === undefined) return refused ? "it was taken" : undefined;
    const written = changed();
    if (written.length > 0) return `${Code[error.code]}, and ${written.join(", ")} changed`;
    const text = error.rawMessage;
    if (!DOCUMENTED.includes(error.code)) return `${Code[error.code]} ${text.slice(0, 200)}`;
    if (text.includes(SECRET) || JSON.stringify(readErrorDetails(error).violations).includes(SECRET))
      return `a secret in ${text.slice(0, 200)}`;
    if (text.length > MAX_TEXT) return `${text.length} characters`;
    if (refused && error.code !== Code.InvalidArgument && error.code !== Code.Unimplemented)
      return `${Code[error.code]} where INVALID_ARGUMENT is due`;
    if (error.code !== Code.InvalidArgument) return undefined;
    const { violations } = readErrorDetails(error);
    // One of the things that a change of a configuration is made of is missing.
    if (IN_PLACE_OF_POLICY.test(path) && violations.some(({ field }) => field === "policy")) return undefined;
    const root = path.split(".")[0]!;
    const named = violations.some(({ field }) => {
      const plain = field.replaceAll(/\[[^\]]*\]/g, "").replace(/^start\./, "");
      return (
        plain === path ||
        plain.startsWith(`${path}.`) ||
        path.startsWith(plain) ||
        (root !== plain && plain.startsWith(root))
      );
    });
    return named ? undefined : `names ${violations.map(({ field }) => field).join(", ")}`;
  }

  it.each(built)(
    "%s: every field with every bad value, and a right request after it",
    async (rpc) => {
      const wrong: string[] = [];
      const { schema } = requestOf(rpc);
      const expected = (await call(gateway, rpc, sample(rpc) as never)).error?.code;
      for (const { path, fields } of everyField(schema)) {
        const among = fields.slice(0, -1).some(({ name }) => POLICY_FIELDS.includes(name));
        for (const { what, value, refused } of badValues(fields.at(-1)!)) {
          const string = what.replace(/^key |[[\]{}]/g, "");
          if (among && string in STRINGS && !IN_POLICIES.includes(string)) continue;
          const problem = await judge(
            rpc,
            withValue(without(sample(rpc, path), path), fields, value),
            path,
            refused && !isOwn(fields),
          );
          if (problem !== undefined) wrong.push(`${path} ${what}: ${problem}`);
        }
      }
      expect(wrong).toEqual([]);
      expect((await call(gateway, rpc, sample(rpc) as never)).error?.code).toBe(expected);
    },
    TIMEOUT_MS,
  );

  it(
    `at random and together, seed ${SEED}`,
    async () => {
      const fields = built
        .map((rpc) => ({ rpc, fields: everyField(requestOf(rpc).schema) }))
        .filter((entry) => entry.fields.length > 0);
      const request = fc.constantFrom(...fields).chain(({ rpc, fields: list }) =>
        fc.record({
          rpc: fc.constant(rpc),
          changes: fc.array(
            fc.tuple(fc.constantFrom(...list), fc.nat(), fc.string({ unit: "binary", maxLength: 40 })),
            { minLength: 1, maxLength: 4 },
          ),
        }),
      );
      await fc.assert(
        fc.asyncProperty(request, async ({ rpc, changes }) => {
          let message: object = sample(rpc);
          for (const [{ fields: path }, choice, text] of changes) {
            const field = path.at(-1)!;
            const values = badValues(field).filter(({ value }) => typeof value !== "string" || value.length < HUGE);
            const plain = field.fieldKind === "scalar" && field.scalar === ScalarType.STRING && choice % 2 === 0;
            message = withValue(
              message,
              path,
              plain ? text.toWellFormed() : values[choice % Math.max(1, values.length)]?.value,
            );
          }
          changed();
          const { error } = await call(gateway, rpc, message as never);
          if (error === undefined) return;
          expect([rpc, Code[error.code], error.rawMessage, DOCUMENTED.includes(error.code)]).toEqual([
            rpc,
            Code[error.code],
            error.rawMessage,
            true,
          ]);
          expect(changed()).toEqual([]);
        }),
        { seed: SEED, numRuns: RANDOM_RUNS, interruptAfterTimeLimit: 5_000 },
      );
    },
    TIMEOUT_MS,
  );
});

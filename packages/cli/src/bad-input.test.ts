import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { OpenShell } from "@openshell/api";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { type CommandSpec, type Flag, GLOBAL_FLAGS, type Positional } from "./args.ts";
import { everything } from "./commands/index.ts";
import { BASES, BY_PLACEHOLDER, badValues, lineOf, SECRET, STRANGE, titleOf } from "./testing/bad-values.ts";
import { FakeGateway } from "./testing/fake-gateway.ts";
import { problem, type Tried } from "./testing/outcome-problem.ts";
import { type CommandOptions, runCommandLine } from "./testing/surroundings.ts";
import type { Json } from "./transport/unary.ts";

/** Printed with every failure, so that a run can be repeated. */
const SEED = 20_261_130;
const RANDOM_RUNS = 40;

const specs: readonly CommandSpec[] = await Promise.all(
  everything().flatMap((item) =>
    ("commands" in item ? item.commands : [item]).map(async (entry) => (await entry.load()).spec),
  ),
);
const mutations = new Set(
  OpenShell.methods
    .filter(({ input }) =>
      [input, ...input.fields.flatMap(({ message }) => message ?? [])].some(({ fields }) =>
        fields.some(({ name }) => name === "request_id"),
      ),
    )
    .map(({ name }) => name),
);

// A machine under load takes ten times as long.
vi.setConfig({ testTimeout: 120_000 });

let gateway: FakeGateway;
let cwd: string;
/** Streams that were opened: each would run something. */
let streams = 0;
/** Whether the gateway does what it is told, or refuses it. */
let accepting = false;

beforeAll(async () => {
  gateway = await FakeGateway.start();
  cwd = join(gateway.folder, "work");
  mkdirSync(join(cwd, "root"), { recursive: true });
  writeFileSync(join(cwd, "policy.yaml"), "version: 1\n");
  const sandbox = (name: unknown): Json => ({
    metadata: { id: "i", name, workspace: "default", createdTime: "2026-03-01T12:00:00Z" },
    spec: {},
    status: { phase: "SANDBOX_PHASE_READY" },
  });
  const refusal = { error: { code: "invalid_argument", message: "name: must be something else" } };
  const mutation = (answer: (message: Json) => Json) => (message: Json) =>
    accepting ? { message: answer(message) } : refusal;
  const read = (answer: Json) => ({ message: answer });
  const receipt = { receiptId: "r", provider: "p", desired: { sandbox: "dev" } };
  const answers = {
    Health: read({ version: "0.1.0", status: "SERVICE_STATUS_HEALTHY" }),
    GetCurrentUser: read({ subject: "me" }),
    GetGatewayInfo: read({}),
    GetSandbox: read({ sandbox: sandbox("dev") }),
    ListSandboxes: read({ sandboxes: [sandbox("dev")] }),
    ListProviders: read({ providers: [{ metadata: { name: "p" }, type: "generic" }] }),
    GetProvider: read({ provider: { metadata: { name: "p" }, type: "generic" } }),
    GetSandboxConfig: read({ version: 1, policy: { version: 1 } }),
    GetGatewayConfig: read({ settings: { ocsf_json_enabled: {} } }),
    GetSandboxPolicyStatus: read({
      activeVersion: 1,
      revision: { version: 1, status: "POLICY_STATUS_LOADED", policy: { version: 1 } },
    }),
    ListSandboxPolicies: read({ revisions: [{ version: 1 }] }),
    GetSandboxLogs: read({ logs: [] }),
    CreateSandbox: mutation(({ name }) => ({ sandbox: sandbox(name === "" ? "made" : name) })),
    StartSandbox: mutation(() => ({})),
    StopSandbox: mutation(() => ({})),
    DeleteSandbox: mutation(() => ({ outcome: "DELETION_OUTCOME_ALREADY_ABSENT" })),
    CreateProvider: mutation(({ provider }) => ({ provider })),
    UpdateProvider: mutation(({ provider }) => ({ provider })),
    DeleteProvider: mutation(() => ({ outcome: "DELETION_OUTCOME_ALREADY_ABSENT" })),
    ListSandboxProviders: read({ providers: [{ metadata: { name: "p" }, type: "generic" }] }),
    AttachSandboxProvider: mutation(() => ({ attached: true, receipt })),
    DetachSandboxProvider: mutation(() => ({ detached: true, receipt })),
    GetSandboxProviderStatus: read({ status: { receipt, state: "PROVIDER_READINESS_STATE_READY" } }),
    UpdateConfig: mutation(() => ({ version: 2, policyHash: "abc" })),
  };
  for (const [method, answer] of Object.entries(answers)) gateway.answers.set(method, answer);
  const stopped = { ...sandbox("dev"), status: { phase: "SANDBOX_PHASE_STOPPED" } };
  gateway.streams.set("WatchSandbox", [{ sandbox: sandbox("dev") }, { sandbox: stopped }]);
  gateway.onStream = (stream) => {
    streams += 1;
    const head = {
      ":status": 200,
      "content-type": "application/grpc",
      "grpc-status": "3",
      "grpc-message": "sandbox: must be something else",
    };
    stream.respond(head, { endStream: true });
  };
  // A gateway in the foreground takes the place of this process.
  vi.spyOn(process, "execve").mockImplementation(() => {
    streams += 1;
    throw new Error("it would become the gateway");
  });
});
afterAll(() => gateway[Symbol.asyncDispose]());

async function tryLine(argv: readonly string[], options: CommandOptions = {}): Promise<Tried> {
  gateway.calls.length = 0;
  streams = 0;
  const env = { ...gateway.env, PATH: "/nonexistent", ...options.env };
  const outcome = await runCommandLine(argv, { cwd, ...options, env });
  const sent = gateway.calls.map(({ method }) => method).filter((method) => mutations.has(method));
  return { ...outcome, sent: [...sent, ...Array.from({ length: streams }, () => "stream")] };
}

/** Tries one line; gives what is wrong, with what it said. */
async function judge(argv: readonly string[], refused: boolean, what: string): Promise<readonly string[]> {
  const tried = await tryLine(argv);
  // A command that needs no gateway does not look at where one is.
  const unasked = gateway.calls.length === 0 && /^--gateway/.test(what) && tried.code === 0;
  const structured = argv.some((item) => /^(?:-o|--output)/.test(item));
  // A denial, and a file that is not valid, are answers.
  const answer =
    (argv[1] === "explain" || argv[1] === "validate") && tried.code === 1 && !tried.stderr.includes("error:");
  const found = problem(answer ? { ...tried, code: 0 } : tried, refused && !unasked, structured);
  return found === undefined ? [] : [`${what}: ${found}: ${tried.code} ${JSON.stringify(tried.stderr.slice(0, 300))}`];
}

const valued = (spec: CommandSpec): readonly Flag[] =>
  [...spec.flags, ...GLOBAL_FLAGS].filter(({ value }) => value !== undefined);

describe("bad input on the command line", () => {
  it("is known for every kind of value", () => {
    const placeholders = specs.flatMap((spec) => valued(spec).map(({ value }) => value!));
    expect(placeholders.filter((name) => !(name in BY_PLACEHOLDER))).toEqual([]);
    expect(Object.keys(BASES).filter((title) => !specs.some((spec) => titleOf(spec) === title))).toEqual([]);
  });

  it("would be noticed: every command does what it is told when nothing is wrong", async () => {
    accepting = true;
    const wrong: string[] = [];
    for (const spec of specs) {
      const outcome = await tryLine(lineOf(spec, []));
      const expected = ["run", "sandbox exec", "sandbox connect", "gateway start", "policy explain"].includes(
        titleOf(spec),
      )
        ? 1
        : 0;
      if (outcome.code !== expected) wrong.push(`${titleOf(spec)}: ${outcome.code} ${outcome.stderr}`);
    }
    accepting = false;
    expect(wrong).toEqual([]);
    expect((await tryLine(["provider", "delete", "p"])).sent).toEqual(["DeleteProvider"]);
  });

  it.each(specs.map((spec) => [titleOf(spec), spec] as const))(
    "%s: every option with every bad value",
    async (_, spec) => {
      const wrong: string[] = [];
      for (const flag of valued(spec)) {
        for (const { what, value, refused } of badValues(flag)) {
          // Words that shells complete have a short form of their own; the long one takes anything behind "=".
          wrong.push(
            ...(await judge(lineOf(spec, [`--${flag.long}=${value}`], flag), refused, `--${flag.long} ${what}`)),
          );
        }
      }
      expect(wrong).toEqual([]);
    },
  );

  it.each(specs.map((spec) => [titleOf(spec), spec] as const))(
    "%s: options absent, empty, twice and against each other",
    async (_, spec) => {
      const wrong: string[] = [];
      const all = [...spec.flags, ...GLOBAL_FLAGS];
      const right = (flag: Flag): string =>
        flag.value === undefined ? `--${flag.long}` : `--${flag.long}=${BY_PLACEHOLDER[flag.value]!.right}`;
      for (const flag of all) {
        const attempt = async (given: readonly string[], what: string) =>
          void wrong.push(...(await judge(lineOf(spec, given, flag), true, `--${flag.long} ${what}`)));
        if (flag.value === undefined) await attempt([`--${flag.long}=yes`], "with a value");
        else {
          if (!flag.value.startsWith("[")) {
            await attempt([`--${flag.long}`, "--verbose"], "before another option");
            const line = lineOf(spec, [], flag);
            const end = line.includes("--") ? line.indexOf("--") : line.length;
            wrong.push(...(await judge([...line.slice(0, end), `--${flag.long}`], true, `--${flag.long} at the end`)));
          }
          if (flag.mayBeEmpty !== true) await attempt([`--${flag.long}=`], "empty");
          if (flag.many !== true) await attempt([right(flag), right(flag)], "twice");
        }
        for (const other of flag.conflicts ?? []) {
          const against = all.find(({ long }) => long === other)!;
          await attempt([right(flag), right(against)], `with --${other}`);
        }
      }
      const unknown = [
        ["--no-such-option"],
        ["--no-such\u001b[2J=x"],
        ["-\u202e"],
        ["-Z"],
        ["---"],
        ["-="],
        ["--="],
        ["--=x"],
      ];
      for (const given of unknown)
        wrong.push(...(await judge(lineOf(spec, given), true, `option ${JSON.stringify(given)}`)));
      expect(wrong).toEqual([]);
    },
  );

  it.each(specs.map((spec) => [titleOf(spec), spec] as const))(
    "%s: every argument bad, empty, and one too many",
    async (_, spec) => {
      const wrong: string[] = [];
      const positionals: readonly Positional[] = spec.positionals ?? [];
      for (const [index, positional] of positionals.entries()) {
        for (const { what, value, refused } of [
          ...badValues(positional),
          { what: "empty", value: "", refused: true },
        ]) {
          if (value.startsWith("-")) continue;
          const words = [...Array.from({ length: index }, () => "dev"), value];
          const rest = lineOf(spec, [], undefined, words);
          wrong.push(...(await judge(rest, refused, `${positional.name} ${what}`)));
        }
      }
      if (spec.trailing !== "direct" && positionals.at(-1)?.many !== true) {
        for (const [what, value] of Object.entries(STRANGE)) {
          const words = [...positionals.map(() => "dev"), value.startsWith("-") ? `x${value}` : value];
          wrong.push(...(await judge(lineOf(spec, [], undefined, words), true, `one more ${what}`)));
        }
      }
      expect(wrong).toEqual([]);
    },
  );

  it("in what a gateway that does everything confirms is escaped", async () => {
    accepting = true;
    const wrong: string[] = [];
    for (const spec of specs) {
      const names = valued(spec).filter(({ value }) => ["NAME", "SANDBOX", "TYPE", "TOKEN"].includes(value!));
      for (const what of ["escape", "C1", "bidi", "line ends", "huge"]) {
        const value = STRANGE[what]!;
        for (const flag of names)
          wrong.push(
            ...(await judge(
              lineOf(spec, [`--${flag.long}=${value}`], flag),
              false,
              `${titleOf(spec)} --${flag.long} ${what}`,
            )),
          );
        if ((spec.positionals ?? []).length > 0)
          wrong.push(...(await judge(lineOf(spec, [], undefined, [value]), false, `${titleOf(spec)} ${what}`)));
      }
    }
    accepting = false;
    expect(wrong).toEqual([]);
  });

  it(`at random, seed ${SEED}`, async () => {
    const word = fc.oneof(
      fc.string({ unit: "binary", maxLength: 24 }),
      fc.string({ unit: "grapheme", maxLength: 24 }),
      fc.constantFrom(...Object.values(STRANGE).filter((text) => text.length < 500)),
    );
    const line = fc.constantFrom(...specs).chain((spec) =>
      fc.record({
        spec: fc.constant(spec),
        given: fc.array(fc.tuple(fc.constantFrom(...spec.flags, ...GLOBAL_FLAGS), fc.boolean(), word), {
          maxLength: 4,
        }),
        words: fc.array(word, { maxLength: 1 }),
      }),
    );
    await fc.assert(
      fc.asyncProperty(line, async ({ spec, given, words }) => {
        const options = given.map(([flag, inline, text]) => (inline ? `--${flag.long}=${text}` : `--${flag.long}`));
        expect(
          await judge(
            [...spec.path, ...options, ...words],
            false,
            JSON.stringify([...spec.path, ...options, ...words]),
          ),
        ).toEqual([]);
      }),
      { seed: SEED, numRuns: RANDOM_RUNS * specs.length, interruptAfterTimeLimit: 5_000 },
    );
  });

  it("in the words of a command that does not exist", async () => {
    const wrong: string[] = [];
    for (const [what, value] of Object.entries(STRANGE)) {
      if (value === "--help") continue;
      for (const argv of [[value], ["sandbox", value], ["help", value], ["__complete", value]]) {
        if (argv[0] === "__complete") expect((await tryLine(argv)).code).toBe(0);
        else wrong.push(...(await judge(argv, true, `${argv[0]!.slice(0, 10)} ${what}`)));
      }
    }
    expect(wrong).toEqual([]);
  });

  it("in every variable that stands for an option", async () => {
    const wrong: string[] = [];
    const options = GLOBAL_FLAGS.filter(({ env, value }) => env !== undefined && value !== undefined);
    expect(options.length).toBeGreaterThanOrEqual(4);
    for (const { env, choices } of options) {
      for (const [what, value] of Object.entries(STRANGE)) {
        const tried = await tryLine(["sandbox", "stop", "dev"], { env: { [env!]: value } });
        const found = problem(tried, choices !== undefined && value.trim() !== "", false);
        if (found !== undefined) wrong.push(`${env} ${what}: ${found}: ${tried.stderr.slice(0, 300)}`);
      }
    }
    for (const name of ["OPENSHELL_LIFECYCLE_TIMEOUT", "OPENSHELL_PROVISION_TIMEOUT"]) {
      const argv = name.includes("LIFE")
        ? ["sandbox", "start", "dev"]
        : ["sandbox", "create", "--detach", "--", "true"];
      for (const value of [
        ...Object.values(STRANGE).filter((text) => text.trim() !== "" && text !== "1.5"),
        "0",
        "3000000",
      ]) {
        const tried = await tryLine(argv, { env: { [name]: value } });
        const found = problem(tried, true, false);
        if (found !== undefined) wrong.push(`${name}: ${found}: ${tried.stderr.slice(0, 300)}`);
      }
    }
    expect(wrong).toEqual([]);
  });

  it("leaves no file behind and changes none", async () => {
    const before = files(gateway.folder);
    await tryLine(["sandbox", "stop", STRANGE["escape"]!]);
    await tryLine(["policy", "set", "dev", "--policy", "nothing.yaml"]);
    await tryLine(["provider", "create", "--name", "x", "--type", "generic", "--credential", `=${SECRET}`]);
    expect(files(gateway.folder)).toEqual(before);
    rmSync(join(gateway.folder, "config"), { recursive: true, force: true });
  });
});

function files(folder: string): readonly string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .toSorted()
    .map((name) => {
      const path = join(folder, name);
      return statSync(path).isFile() ? `${name}: ${readFileSync(path, "utf8")}` : name;
    });
}

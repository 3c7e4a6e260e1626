import { expect, test } from "vitest";
import { type CommandSpec, parseCommandLine } from "./args.ts";
import type { CliError } from "./errors.ts";

const spec: CommandSpec = {
  path: ["thing", "make"],
  summary: "make a thing",
  positionals: [{ name: "NAME" }],
  trailing: "separated",
  flags: [
    { long: "label", value: "K=V", many: true, help: "" },
    { long: "size", value: "N", help: "", env: "THING_SIZE", choices: ["1", "2"] },
    { long: "keep", help: "" },
    { long: "no-keep", conflicts: ["keep"], help: "" },
    { long: "tty", help: "" },
    { long: "no-tty", help: "" },
    { long: "gpu", value: "[N]", help: "" },
  ],
};
const direct: CommandSpec = { ...spec, trailing: "direct", positionals: [] };

const parse = (argv: string[], env: Record<string, string> = {}, of = spec) => parseCommandLine(of, argv, env);
const refusal = (
  argv: string[],
  env: Record<string, string> = {},
  of = spec,
): { message: string; next: string; code: number } => {
  try {
    parse(argv, env, of);
  } catch (error) {
    const { message, next, exitCode } = error as CliError;
    return { message, next: next.join(" "), code: exitCode };
  }
  throw new Error("it was accepted");
};

test("options, repeated ones, values of variables, and what follows --", () => {
  const args = parse(["a", "--label", "x=1", "--label=y=2", "-v", "-v", "--gpu=2", "--", "ls", "--keep"], {
    THING_SIZE: "2",
  });
  expect(args.positionals).toEqual(["a"]);
  expect(args.values("label")).toEqual(["x=1", "y=2"]);
  expect(args.count("verbose")).toBe(2);
  expect(args.value("size")).toBe("2");
  expect(args.value("gpu")).toBe("2");
  expect(args.has("keep")).toBe(false);
  expect(args.command).toEqual(["ls", "--keep"]);
  expect(parse(["--size", "1"], { THING_SIZE: "2" }).value("size")).toBe("1");
  expect(parse(["--gpu"]).has("gpu")).toBe(true);
});

test("a switch and its opposite override each other", () => {
  expect(parse([]).either("tty")).toBeUndefined();
  expect(parse(["--tty", "--no-tty"]).either("tty")).toBe(false);
  expect(parse(["--no-tty", "--tty"]).either("tty")).toBe(true);
});

test("the first word ends the options of a command that runs another one", () => {
  const args = parse(["--keep", "ls", "-la", "--label"], {}, direct);
  expect(args.has("keep")).toBe(true);
  expect(args.command).toEqual(["ls", "-la", "--label"]);
  expect(parse(["--keep", "--", "--odd"], {}, direct).command).toEqual(["--odd"]);
  expect(parse(["ls", "--", "x"], {}, direct).command).toEqual(["ls", "--", "x"]);
  expect(parse(["--label", "a=b", "--", "ls"], {}, direct).command).toEqual(["ls"]);
});

test("switches of variables", () => {
  for (const [value, on] of [
    ["1", true],
    ["yes", true],
    ["0", false],
    ["false", false],
    ["", false],
  ] as const) {
    expect(parse([], { OPENSHELL_GATEWAY_INSECURE: value }).has("gateway-insecure")).toBe(on);
  }
});

test("refusals name the problem and the valid spelling", () => {
  expect(refusal(["--labl", "x=1"])).toEqual({
    message: "unknown option --labl",
    next: "Did you mean --label?",
    code: 2,
  });
  expect(refusal(["--zzzzzz"]).next).toBe("See openshell thing make --help");
  expect(refusal(["--size"]).message).toBe("--size needs a value");
  expect(refusal(["--label", "--keep"]).message).toBe("--label needs a value");
  expect(refusal(["--keep=1"]).message).toBe("--keep takes no value");
  expect(refusal(["--size", "3"])).toMatchObject({ message: '--size: "3" is not possible', next: "Use one of: 1, 2" });
  expect(() => parse([], { THING_SIZE: "9" }).value("size")).toThrow('$THING_SIZE: "9" is not possible');
  expect(refusal(["--size=1", "--size=2"]).message).toBe("--size is given twice");
  expect(refusal(["--keep", "--no-keep"]).message).toBe("--no-keep and --keep exclude each other");
  expect(refusal(["a", "b"])).toMatchObject({
    message: 'unexpected argument "b"',
    next: 'Put the command to run behind "--"',
  });
  expect(refusal(["a"], {}, { ...spec, trailingRequired: true }).message).toBe("no command was given");
});

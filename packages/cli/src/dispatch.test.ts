import { expect, test } from "vitest";
import { everything } from "./commands/index.ts";
import { splitWords } from "./dispatch.ts";
import { runCommandLine } from "./testing/surroundings.ts";
import { refuseUndecodable } from "./undecodable.ts";

test("the command is found behind global options", () => {
  expect(splitWords(["-g", "sandbox", "--workspace", "w", "sandbox", "list", "-o", "json"], 2)).toEqual({
    words: ["sandbox", "list"],
    rest: ["-g", "sandbox", "--workspace", "w", "-o", "json"],
  });
  expect(splitWords(["run", "--", "list"], 2)).toEqual({ words: ["run"], rest: ["--", "list"] });
  expect(splitWords(["run", "ls", "-la"], 1)).toEqual({ words: ["run"], rest: ["ls", "-la"] });
});

test("no command, a group alone and --help print help with status 0", async () => {
  for (const argv of [[], ["--help"], ["-h"], ["help"], ["help", "help"]]) {
    const { code, stdout, stderr } = await runCommandLine(argv);
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    for (const title of [
      "SANDBOX COMMANDS",
      "GATEWAY COMMANDS",
      "ADDITIONAL COMMANDS",
      "FLAGS",
      "EXAMPLES",
      "LEARN MORE",
    ]) {
      expect(stdout).toContain(title);
    }
  }
  for (const argv of [["sandbox"], ["sb", "--help"]]) {
    expect((await runCommandLine(argv)).stdout).toContain("openshell sandbox COMMAND");
  }
  for (const argv of [
    ["sandbox", "exec", "--help"],
    ["help", "sandbox", "exec"],
  ]) {
    const { stdout } = await runCommandLine(argv);
    expect(stdout).toContain("openshell sandbox exec [SANDBOX] [OPTIONS] -- COMMAND…");
  }
});

test("--version in every place", async () => {
  for (const argv of [["--version"], ["-V"], ["sandbox", "-V"], ["sandbox", "list", "--version"]]) {
    const { code, stdout } = await runCommandLine(argv);
    expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringMatching(/^openshell \d+\.\d+\.\d+\n$/) });
  }
});

test("wrong words end with status 2, a cause and a next step", async () => {
  const cases: [string[], string, string][] = [
    [["snadbox"], 'there is no command "snadbox"', "Did you mean openshell sandbox?"],
    [["sandbox", "lst"], 'openshell sandbox has no command "lst"', "Did you mean openshell sandbox list?"],
    [["rnu", "--", "id"], 'there is no command "rnu"', "Did you mean openshell run?"],
    [["ps"], 'there is no command "ps"', "Did you mean openshell sandbox list?"],
    [["exec", "dev"], 'there is no command "exec"', "Did you mean openshell sandbox exec?"],
    [["shell"], 'there is no command "shell"', "Did you mean openshell sandbox connect?"],
    [["validate"], 'there is no command "validate"', "Did you mean openshell policy validate?"],
    [["version"], 'there is no command "version"', "Did you mean openshell --version?"],
    [["secret", "add"], 'there is no command "secret"', "Did you mean openshell provider?"],
    [["sandbox", "rm", "x"], 'openshell sandbox has no command "rm"', "Did you mean openshell sandbox delete?"],
    [["sandbox", "logs", "x"], 'openshell sandbox has no command "logs"', "Did you mean openshell logs?"],
    [["xyzzy"], 'there is no command "xyzzy"', "See openshell --help"],
    [
      ["forward", "list"],
      "openshell forward is not built yet in this version",
      "See openshell --help for what is there",
    ],
    [
      ["sb", "upload"],
      "openshell sandbox upload is not built yet in this version",
      "See openshell --help for what is there",
    ],
    [["--frobnicate"], "unknown option --frobnicate", "See openshell --help"],
    [["sandbox", "list", "--naems"], "unknown option --naems", "Did you mean --names?"],
    [["sandbox", "list", "--", "x"], "openshell sandbox list runs no command", 'Remove "--" and what follows'],
  ];
  for (const [argv, message, next] of cases) {
    const { code, stdout, stderr } = await runCommandLine(argv);
    expect({ code, stdout, stderr }).toEqual({ code: 2, stdout: "", stderr: `error: ${message}\n  next: ${next}\n` });
  }
});

test("colours follow the stream, --color and NO_COLOR", async () => {
  const sequence = "\u001b[";
  expect((await runCommandLine(["--help"])).stdout).not.toContain(sequence);
  expect((await runCommandLine(["--help"], { columns: 80 })).stdout).toContain(sequence);
  expect((await runCommandLine(["--help"], { columns: 80, env: { NO_COLOR: "1" } })).stdout).not.toContain(sequence);
  expect((await runCommandLine(["--help"], { columns: 80, env: { NO_COLOR: "" } })).stdout).toContain(sequence);
  expect((await runCommandLine(["--help"], { columns: 80, env: { TERM: "dumb" } })).stdout).not.toContain(sequence);
});

test("an argument that is not UTF-8 is refused instead of changed; U+FFFD is text like any other", () => {
  const bytes =
    (...last: number[]) =>
    () =>
      Buffer.from([...Buffer.from("node\0cli.mjs\0run\0--\0cat\0"), ...last, 0]);
  const argv = ["run", "--", "cat", "a\ufffd"];
  expect(() => refuseUndecodable(argv, bytes(0x61, 0xff))).toThrow('"a\ufffd" is not UTF-8');
  expect(() => refuseUndecodable(argv, bytes(0x61, 0xef, 0xbf, 0xbd))).not.toThrow();
});

test("no command that is there is said not to be built", async () => {
  for (const entry of everything()) {
    const words =
      "commands" in entry ? entry.commands.map((command) => [entry.name, ...command.name.split(" ")]) : [[entry.name]];
    for (const argv of words) {
      expect(await runCommandLine([...argv, "--help"]), argv.join(" ")).toMatchObject({ code: 0, stderr: "" });
    }
  }
});

import { execFileSync } from "node:child_process";
import { describe, expect, it } from "vitest";
import { commandLine, quote, shellCode } from "./command.ts";

describe("command line", () => {
  it("gives every argument to the shell exactly as it was", () => {
    const words = ["plain", "two words", "it's", '"', "$HOME", "`id`", "a\nb", "*", "", "\\", "ü🏠", "-n"];
    const out = execFileSync("/bin/sh", ["-c", `printf '%s\\0' ${words.map(quote).join(" ")}`]);
    expect(out.toString().split("\0").slice(0, -1)).toEqual(words);
  });
  it("uses a login shell unless told otherwise", () => {
    expect(commandLine(["echo", "a b"], false, "/bin/bash")).toEqual(["/bin/bash", "-lc", "echo 'a b'"]);
    expect(commandLine(["echo", "a b"], true, "/bin/bash")).toEqual(["echo", "a b"]);
  });
  it("gives arguments apart that are too long for the kernel as one", () => {
    const words = ["printf", "%s\\0", ...Array.from({ length: 200 }, (_, number) => `${number} ${"'ü".repeat(300)}`)];
    const [program, ...rest] = commandLine(words, false, "/bin/sh");
    expect(rest.every((word) => Buffer.byteLength(word) < 131_072)).toBe(true);
    const out = execFileSync(program!, rest, { maxBuffer: 1024 * 1024 });
    expect(out.toString().split("\0").slice(0, -1)).toEqual(words.slice(2));
  });
  it("reports signals as 128 + n", () => {
    expect(shellCode({ kind: "signaled", signal: 9 })).toBe(137);
    expect(shellCode({ kind: "exited", code: 3 })).toBe(3);
  });
});

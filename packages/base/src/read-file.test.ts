import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { decodeText, readTextFile, UnusableFile } from "./read-file.ts";

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-read-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function problem(path: string, maxBytes = 1000): string {
  try {
    return `read: ${readTextFile(path, maxBytes)}`;
  } catch (error) {
    if (error instanceof UnusableFile) return error.message;
    throw error;
  }
}

it("reads text with and without a byte order mark, up to the limit", () => {
  const path = join(folder, "text");
  writeFileSync(path, "\ufeffgrüße\r\n");
  expect(readTextFile(path, 100)).toBe("grüße\r\n");
  writeFileSync(path, "x".repeat(1000));
  expect(readTextFile(path, 1000)).toHaveLength(1000);
  expect(problem(path, 999)).toBe("is larger than 999 bytes");
});

it("refuses what is no file, without waiting for it", async () => {
  const pipe = join(folder, "pipe");
  execFileSync("mkfifo", [pipe]);
  const socket = join(folder, "socket");
  const server = createServer().listen(socket);
  await new Promise((resolve) => server.once("listening", resolve));
  mkdirSync(join(folder, "folder"));
  symlinkSync(join(folder, "nothing"), join(folder, "dangling"));
  symlinkSync(join(folder, "loop"), join(folder, "loop"));
  symlinkSync(pipe, join(folder, "to-pipe"));
  expect([pipe, join(folder, "to-pipe"), socket, join(folder, "folder")].map((path) => problem(path))).toEqual([
    "is a named pipe",
    "is a named pipe",
    "is a socket",
    "is a folder",
  ]);
  expect(["/dev/zero", "/dev/null"].map((path) => problem(path))).toEqual(["is a device", "is a device"]);
  expect(["dangling", "loop", "absent", "a\0b", "n".repeat(300)].map((name) => problem(join(folder, name)))).toEqual([
    "does not exist",
    "is a link that leads to itself",
    "does not exist",
    "has a NUL in its name",
    "has a name that is too long",
  ]);
  expect(problem(join(socket, "below"))).toBe("does not exist");
  server.close();
});

it("takes a pipe that a shell passes as a descriptor, and a file of unknown size only up to the limit", () => {
  const script = `import { readTextFile } from ${JSON.stringify(new URL("./read-file.ts", import.meta.url).href)};
    process.stdout.write(readTextFile("/dev/stdin", 10));`;
  const run = (input: string) =>
    spawnSync(
      "sh",
      ["-c", 'printf %s "$1" | "$2" --input-type=module -e "$3"', "sh", input, process.execPath, script],
      {
        encoding: "utf8",
      },
    );
  expect(run("short").stdout).toBe("short");
  expect(run("much too long").stderr).toContain("is larger than 10 bytes");
  expect(problem("/proc/kallsyms", 100)).toBe("is larger than 100 bytes");
});

it.each([
  ["UTF-16", Buffer.from("\ufeffversion: 1", "utf16le"), "is UTF-16, not UTF-8"],
  ["UTF-16 without its mark", Buffer.from("version: 1", "utf16le"), "holds NUL bytes, which no text has"],
  ["Latin-1", Buffer.from("gr\u00fc\u00dfe", "latin1"), "is not UTF-8"],
  ["a character that is cut", Buffer.from("grü").subarray(0, 3), "is not UTF-8"],
  ["surrogates in UTF-8", Buffer.from([0xed, 0xa0, 0x80]), "is not UTF-8"],
])("does not guess at %s", (_, bytes, problemText) => {
  expect(() => decodeText(bytes)).toThrow(problemText);
});

import { execFileSync } from "node:child_process";
import { closeSync, constants, fstatSync, mkdtempSync, openSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import type { Addon } from "./native.ts";
import { openStreams } from "./process.ts";

const addon = {
  duplicate: () => {
    throw new Error("not reached");
  },
} as unknown as Addon;
let folder: string;
let fifo: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-streams-"));
  fifo = join(folder, "fifo");
  execFileSync("mkfifo", [fifo]);
});
afterAll(() => rmSync(folder, { recursive: true }));
const opened: number[] = [];
afterEach(() => {
  for (const fd of opened.splice(0)) closeSync(fd);
});
const fd = (path: string): number => {
  opened.push(openSync(path, constants.O_RDWR | constants.O_NONBLOCK));
  return opened.at(-1)!;
};

describe("openStreams", () => {
  it.each(["/dev/null", "a regular file"])(
    "refuses %s in the place of a pipe before it takes any descriptor",
    (what) => {
      const other = what === "/dev/null" ? fd(what) : openSync(join(folder, "file"), "w");
      if (what !== "/dev/null") opened.push(other);
      const pipes = [fd(fifo), fd(fifo)] as const;
      expect(() => openStreams(addon, [pipes[0], pipes[1], other], false)).toThrowError(
        expect.objectContaining({ code: "boundary_untrusted" }),
      );
      for (const pipe of pipes) expect(fstatSync(pipe).isFIFO()).toBe(true);
    },
  );

  it("refuses a pipe in the place of a terminal", () => {
    expect(() => openStreams(addon, [fd(fifo)], true)).toThrowError(
      expect.objectContaining({ code: "boundary_untrusted" }),
    );
  });
});

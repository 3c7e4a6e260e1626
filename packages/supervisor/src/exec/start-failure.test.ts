import { BoundaryError } from "@openshell/boundary/local/boundary-error.ts";
import { describe, expect, it } from "vitest";
import { describeFolderFailure, describeStartFailure, startFailure } from "./start-failure.ts";

describe("a program that cannot be started", () => {
  it.each([
    [2, 127],
    [20, 127],
    [13, 126],
    [8, 126],
    [7, 126],
  ])("errno %i is code %i", (errno, code) => {
    expect(startFailure(new BoundaryError("exec", errno, ""), "tool")?.code).toBe(code);
  });
  it("has no code when the program is not to blame", () => {
    expect(startFailure(new BoundaryError("cwd", 2, "/nowhere"), "tool")).toBeUndefined();
    expect(startFailure(new BoundaryError("exec", 11, ""), "tool")).toBeUndefined();
    expect(startFailure(new Error("ENOENT"), "tool")).toBeUndefined();
  });
  it("is named, without letting the name forge a line", () => {
    expect(String(describeStartFailure(new BoundaryError("exec", 2, ""), "a\nb"))).toContain(
      "a\\x0ab: command not found in the sandbox; exec: ENOENT",
    );
  });
});

describe("a working directory that cannot be entered", () => {
  it.each([
    [2, "is not a folder in the sandbox"],
    [20, "is not a folder in the sandbox"],
    [13, "cannot be entered (EACCES)"],
  ])("errno %i is told with its name", (errno, problem) => {
    const failure = describeFolderFailure(new BoundaryError("cwd", errno, ""), "/no\nwhere");
    expect(failure).toMatchObject({ code: "working_directory_unusable" });
    expect(String(failure)).toContain(`working directory /no\\x0awhere ${problem}; nothing was started`);
  });
  it("leaves other errors alone", () => {
    const other = new BoundaryError("exec", 2, "");
    expect(describeFolderFailure(other, "/x")).toBe(other);
  });
});

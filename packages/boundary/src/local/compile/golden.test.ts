import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { captureNftBatch } from "./nft.ts";
import { captureRoutes } from "./route.ts";
import { compileSeccomp } from "./seccomp.ts";
import { compileSkLookup } from "./sk-lookup.ts";

/**
 * What the kernel is handed, byte by byte: eight bytes a line, as a kernel accepted it (the driver's functional tests load it again).
 * A change here is a change of the sandbox's walls and is read instruction by instruction before the file is replaced.
 */
function golden(name: string): string {
  return readFileSync(join(import.meta.dirname, "testdata", name), "utf8").trimEnd();
}

function lines(bytes: Uint8Array): string {
  return (
    Buffer.from(bytes)
      .toString("hex")
      .match(/.{1,16}/g) ?? []
  ).join("\n");
}

describe("compiled bytes", () => {
  it.each(["x64", "arm64"] as const)("seccomp filter for %s", (architecture) => {
    expect(lines(compileSeccomp(architecture))).toBe(golden(`seccomp-${architecture}.hex`));
  });
  it("sk_lookup program", () => {
    const { program, mapFixups } = compileSkLookup();
    expect(lines(program)).toBe(golden("sk-lookup.hex"));
    expect(mapFixups).toEqual([29]);
  });
  it("nft batch", () => {
    expect(lines(captureNftBatch(3128))).toBe(golden("nft-3128.hex"));
  });
  it("route messages", () => {
    expect(
      captureRoutes()
        .map((route) => lines(route.message))
        .join("\n\n"),
    ).toBe(golden("routes.hex"));
  });
});

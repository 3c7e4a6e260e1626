import { create } from "@bufbuild/protobuf";
import { ListSandboxesRequestSchema, SandboxSchema } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { MAX_PAGE_BYTES, pageOf } from "./pages.ts";

const token = {
  mac: () => new Uint8Array(32),
  method: "ListSandboxes",
  schema: ListSandboxesRequestSchema,
  request: create(ListSandboxesRequestSchema),
};
const page = (sizes: readonly number[], limit: number) =>
  pageOf({
    rows: sizes,
    limit,
    schema: SandboxSchema,
    message: (size) => create(SandboxSchema, { hostKeyFingerprint: "x".repeat(size) }),
    cursor: (size) => [String(size)],
    token,
  });

describe("a page", () => {
  it("ends where it was asked to, or at the last row", async () => {
    expect((await page([1, 2, 3], 2)).items).toHaveLength(2);
    expect((await page([1, 2, 3], 2)).nextPageToken).not.toBe("");
    expect(await page([1, 2], 2)).toMatchObject({ nextPageToken: "" });
    expect(await page([], 2)).toEqual({ items: [], nextPageToken: "" });
  });

  it("stays below what clients accept, yet always gets on", async () => {
    const half = MAX_PAGE_BYTES / 2;
    const { items, nextPageToken } = await page([half, half, half], 3);
    expect(items).toHaveLength(1);
    expect(nextPageToken).not.toBe("");
    expect((await page([2 * MAX_PAGE_BYTES, 1], 3)).items).toHaveLength(1);
  });
});

import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { ListSandboxesRequestSchema, ListSandboxTemplatesRequestSchema } from "./generated/openshell_pb.js";
import { webCryptoMac } from "./mac.ts";
import { decodePageToken, encodePageToken, MAX_PAGE_TOKEN, type PageTokenContext, pageSize } from "./page-token.ts";

const mac = await webCryptoMac(new Uint8Array(32).fill(1));
const cursor = ["1764000000000", "demo", "default", "6f0f"];

function context(
  init: { pageSize?: number; pageToken?: string; labelSelector?: string; workspace?: string } = {},
  method = "ListSandboxes",
): PageTokenContext<typeof ListSandboxesRequestSchema> {
  const { workspace = "default", ...rest } = init;
  const workspaceScope = { selection: { case: "workspace", value: workspace } } as const;
  return {
    mac,
    method,
    schema: ListSandboxesRequestSchema,
    request: create(ListSandboxesRequestSchema, { ...rest, workspaceScope }),
  };
}

describe("pageSize", () => {
  it.each([
    [0, 100],
    [1, 1],
    [1000, 1000],
    [1001, 1000],
    [2147483647, 1000],
  ])("turns %i into %i", (requested, expected) => expect(pageSize(requested)).toBe(expected));

  it("refuses a negative size", () => expect(() => pageSize(-1)).toThrow("page_size"));
});

describe("page tokens", () => {
  it("lead back to their cursor, with another page size and the token in the request", async () => {
    const token = await encodePageToken(context({ pageSize: 10 }), cursor);
    expect(token).toMatch(/^[A-Za-z0-9_-]+$/);
    expect(await decodePageToken(context({ pageSize: 99, pageToken: token }), token, 4)).toEqual(cursor);
    expect(await decodePageToken(context(), "", 4)).toBeUndefined();
  });

  it("are refused by another selector, label selector, method, list or key", async () => {
    const token = await encodePageToken(context(), cursor);
    await expect(decodePageToken(context({ workspace: "other" }), token, 4)).rejects.toThrow("page_token");
    await expect(decodePageToken(context({ labelSelector: "a=b" }), token, 4)).rejects.toThrow("page_token");
    await expect(decodePageToken(context({}, "ListServices"), token, 4)).rejects.toThrow("page_token");
    await expect(decodePageToken(context(), token, 3)).rejects.toThrow("page_token");
    const other = { ...context(), mac: await webCryptoMac(new Uint8Array(32).fill(2)) };
    await expect(decodePageToken(other, token, 4)).rejects.toThrow("page_token");
    const templates = {
      mac,
      method: "ListSandboxes",
      schema: ListSandboxTemplatesRequestSchema,
      request: create(ListSandboxTemplatesRequestSchema),
    };
    await expect(decodePageToken(templates, token, 4)).rejects.toThrow("page_token");
  });

  it("are refused when any character is changed", async () => {
    const token = await encodePageToken(context(), cursor);
    const original = Buffer.from(token, "base64url");
    for (let index = 0; index < token.length; index++) {
      const changed = token.slice(0, index) + (token[index] === "A" ? "B" : "A") + token.slice(index + 1);
      // The last character may hold bits that no byte uses.
      if (Buffer.from(changed, "base64url").equals(original)) continue;
      await expect(decodePageToken(context(), changed, 4)).rejects.toThrow("page_token");
    }
  });

  it.each(["x", "!!!!", "AQ", "=", "A".repeat(MAX_PAGE_TOKEN + 1), "ä"])("refuses %.20j", async (token) => {
    await expect(decodePageToken(context(), token, 4)).rejects.toThrow("page_token");
  });

  it("never exceed their length limit", async () => {
    await expect(encodePageToken(context(), ["x".repeat(MAX_PAGE_TOKEN)])).rejects.toThrow("too long");
  });
});

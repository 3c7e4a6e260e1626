import { randomUUID } from "node:crypto";
import { Code } from "@connectrpc/connect";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, isBuilt, isPaged, methodOf, refusal, requestOf, rpcNames, sampleOf } from "./calls.ts";

const ROWS = 5;
const lists = rpcNames.filter((rpc) => isPaged(rpc) && isBuilt(rpc));
const hasLabels = (rpc: RpcName) => requestOf(rpc).schema.fields.some(({ name }) => name === "label_selector");

/** The list of a response, whatever it is called. */
const listField = (rpc: RpcName): string =>
  methodOf(rpc).output.fields.find((field) => field.fieldKind === "list")!.localName;

describe("pages of every list", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
    const names = Array.from({ length: ROWS }, (_, index) => `n${index}`);
    for (const name of names) {
      await gateway.client.createProvider({
        ...inWorkspace("default"),
        provider: { metadata: { name }, type: "generic", credentials: { [`KEY_${name}`]: "v" } },
      });
    }
    await gateway.create({ name: "x", spec: { providers: names.toReversed(), policy: { version: 1 } } });
    for (const name of names.slice(1)) await gateway.create({ name });
    for (const host of names.slice(1)) {
      const networkPolicies = {
        a: { endpoints: [{ host: `${host}.example.com`, port: 443 }], binaries: [{ path: "/x" }] },
      };
      const policy = { version: 1, networkPolicies };
      await gateway.client.updateConfig({ ...inWorkspace("default"), sandbox: "x", policy });
    }
    const workspace = { labels: {}, annotations: {}, phase: "active" } as const;
    for (const name of names.slice(1)) {
      const row = { ...workspace, id: randomUUID(), name, createdAt: 1_000 };
      await gateway.store.write(gateway.store.workspaces.create(row));
    }
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  /** One page as identities of its items, and the next token. */
  async function page(rpc: RpcName, overrides: Record<string, unknown> = {}) {
    const { error, message } = await call(gateway, rpc, sampleOf(rpc, overrides));
    if (error !== undefined) throw error;
    const items = message![listField(rpc)] as readonly { metadata?: { name: string }; version?: number }[];
    return {
      items: items.map(({ metadata, version }) => metadata?.name ?? String(version)),
      next: message!["nextPageToken"] as string,
    };
  }

  it("are of the lists that are built", () => expect(lists.length).toBeGreaterThanOrEqual(5));

  it.each(lists)("%s: each size gives the same rows in the same order, each once, and no token twice", async (rpc) => {
    const whole = await page(rpc);
    expect(whole.items).toHaveLength(ROWS);
    expect(new Set(whole.items).size).toBe(ROWS);
    expect(whole.next).toBe("");
    for (const pageSize of [1, 2, ROWS, 1_000, 1_001, 2_147_483_647]) {
      const seen: string[] = [];
      const tokens = new Set<string>();
      let pageToken = "";
      do {
        const { items, next } = await page(rpc, { pageSize, pageToken });
        expect(items.length).toBeLessThanOrEqual(pageSize);
        expect(tokens.has(next)).toBe(false);
        if (next !== "") tokens.add(next);
        seen.push(...items);
        pageToken = next;
      } while (pageToken !== "");
      expect([pageSize, seen]).toEqual([pageSize, whole.items]);
    }
  });

  it.each(lists)("%s: the size may change between pages, nothing else may", async (rpc) => {
    const { next } = await page(rpc, { pageSize: 2 });
    expect((await page(rpc, { pageSize: 1, pageToken: next })).items).toHaveLength(1);
    const has = (field: string): boolean => requestOf(rpc).schema.fields.some(({ name }) => name === field);
    const others: Record<string, unknown>[] = [];
    if (has("workspace_scope") && !has("sandbox")) others.push(inWorkspace("n1"));
    if (has("sandbox")) others.push({ sandbox: "n1" });
    if (hasLabels(rpc)) others.push({ labelSelector: "a=b" });
    expect(others.length).toBeGreaterThan(0);
    for (const other of others) {
      const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, { ...other, pageToken: next }));
      expect([code, fields]).toEqual([Code.InvalidArgument, ["page_token"]]);
    }
  });

  it.each(lists)("%s: a token of another list, an altered and an invented one are refused", async (rpc) => {
    const { next } = await page(rpc, { pageSize: 2 });
    const foreign = await Promise.all(
      lists.filter((other) => other !== rpc).map((other) => page(other, { pageSize: 1 })),
    );
    const middle = next.length >> 1;
    const altered = next.slice(0, middle) + (next[middle] === "A" ? "B" : "A") + next.slice(middle + 1);
    const bad = [...foreign.map((other) => other.next), altered, `${next}AAAA`, "x", "ä", "\u0000", "A".repeat(5_000)];
    for (const pageToken of bad) {
      const { code, fields, message } = await refusal(gateway, rpc, sampleOf(rpc, { pageToken }));
      expect([pageToken, code, fields]).toEqual([pageToken, Code.InvalidArgument, ["page_token"]]);
      expect(message).not.toContain(pageToken);
    }
  });

  it.each(lists)("%s: a negative size is refused", async (rpc) => {
    for (const pageSize of [-1, -2_147_483_648]) {
      const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, { pageSize }));
      expect([code, fields]).toEqual([Code.InvalidArgument, ["page_size"]]);
    }
  });

  it.each(lists.filter(hasLabels))("%s: a label selector that is none is refused", async (rpc) => {
    const bad = [
      "a",
      "=b",
      "a=b,",
      "a==b",
      "a!=b",
      "a in (b)",
      "a=b,a=c",
      `k=${"v".repeat(64)}`,
      Array(65).fill("a=b").join(),
    ];
    for (const labelSelector of bad) {
      const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, { labelSelector }));
      expect([labelSelector, code, fields]).toEqual([labelSelector, Code.InvalidArgument, ["label_selector"]]);
    }
    expect((await page(rpc, { labelSelector: "no=body" })).items).toEqual([]);
  });

  it("skip rows deleted between pages and show rows made after the place, without repeating any", async () => {
    await using other = await Harness.open();
    for (const name of ["a", "b", "c", "d"]) await other.create({ name });
    const list = async (pageToken: string) =>
      await other.client.listSandboxes({ ...inWorkspace("default"), pageSize: 2, pageToken });
    const first = await list("");
    const names = first.sandboxes.map(({ metadata }) => metadata!.name);
    expect(names).toEqual(["a", "b"]);
    // The very row that the token stands at is deleted, one beyond it too, and one is added at the end.
    for (const name of ["b", "c"]) await other.client.deleteSandbox({ ...inWorkspace("default"), name });
    await other.create({ name: "e" });
    const rest = await list(first.nextPageToken);
    expect(rest.sandboxes.map(({ metadata }) => metadata!.name)).toEqual(["d", "e"]);
    expect(rest.nextPageToken).toBe("");
  });
});

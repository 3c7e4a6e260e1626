import { afterEach, beforeEach, expect, test } from "vitest";
import { parse } from "yaml";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { type CommandOptions, runCommandLine } from "../testing/surroundings.ts";
import type { Json } from "../transport/unary.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(() => gateway[Symbol.asyncDispose]());

const list = (argv: readonly string[], options: CommandOptions = {}) =>
  runCommandLine(["sandbox", "list", ...argv], { ...options, env: gateway.env });

const sandbox = (name: string): Json => ({ metadata: { id: `id-${name}`, name, workspace: "default" } });

/** Sandboxes s0, s1, … in pages as they are asked for; the token is the number of the next one. */
function serve(count: number): void {
  gateway.answers.set("ListSandboxes", ({ pageSize, pageToken }) => {
    const from = Number(pageToken === "" ? 0 : pageToken);
    const to = Math.min(count, from + Number(pageSize));
    const sandboxes = Array.from({ length: to - from }, (_, index) => sandbox(`s${from + index}`));
    return { message: { sandboxes, nextPageToken: to < count ? String(to) : "" } };
  });
}
const sizes = (): unknown[] => gateway.calls.map(({ message }) => message["pageSize"]);

test("everything is listed, page by page, and in one document", async () => {
  serve(250);
  const names = Array.from({ length: 250 }, (_, index) => `s${index}`);
  expect((await list(["--names"])).stdout.split("\n").slice(0, -1)).toEqual(names);
  expect(sizes()).toEqual([100, 100, 100]);
  for (const [format, read] of [
    ["json", (text: string): unknown => JSON.parse(text)],
    ["yaml", (text: string): unknown => parse(text)],
  ] as const) {
    const all = read((await list(["-o", format])).stdout) as { sandboxes: { name: string }[]; next_page_token: string };
    expect(all.sandboxes.map(({ name }) => name)).toEqual(names);
    expect(all.next_page_token).toBe("");
  }
  const table = (await list([])).stdout.split("\n");
  expect(table[0]).toBe("NAME  CREATED  PHASE");
  expect(table).toHaveLength(252);
});

test("--limit asks for no more than that, and says where to go on", async () => {
  serve(250);
  const { stdout, stderr } = await list(["--limit", "130", "-o", "json"]);
  const found = JSON.parse(stdout) as { sandboxes: unknown[]; next_page_token: string };
  expect([found.sandboxes.length, found.next_page_token, stderr]).toEqual([130, "130", "more: --page-token 130\n"]);
  expect(sizes()).toEqual([100, 30]);
  for (const wrong of ["0", "-1", "x", "1000001"]) expect((await list([`--limit=${wrong}`])).code).toBe(2);
  expect((await list(["--limit", "1", "--page-size", "1"])).code).toBe(2);
});

test("--page-size and --page-token ask for one page", async () => {
  serve(5);
  expect((await list(["--page-size", "2", "--page-token", "2", "--names"])).stdout).toBe("s2\ns3\n");
  expect((await list(["--page-token", "3", "--names"])).stdout).toBe("s3\ns4\n");
  expect(gateway.calls).toHaveLength(2);
});

test("an empty list is a sentence for people and an empty collection for programs", async () => {
  serve(0);
  expect((await list([])).stdout).toBe("No sandboxes found.\n");
  expect((await list(["--names"])).stdout).toBe("");
  expect((await list(["--ids"])).stdout).toBe("");
  expect((await list(["-o", "json"])).stdout).toBe('{\n  "sandboxes": [],\n  "next_page_token": ""\n}\n');
  expect((await list(["-o", "yaml"])).stdout).toBe('sandboxes: []\nnext_page_token: ""\n');
});

test("a page that is refused in the middle is an error, and so is a list that does not end", async () => {
  gateway.answers.set("ListSandboxes", ({ pageToken }) =>
    pageToken === ""
      ? { message: { sandboxes: [sandbox("a")], nextPageToken: "t" } }
      : { error: { code: "unavailable", message: "busy" }, status: 503 },
  );
  expect(await list(["--names"])).toMatchObject({ code: 1, stdout: "a\n" });
  gateway.answers.set("ListSandboxes", { message: { sandboxes: [sandbox("a")], nextPageToken: "t" } });
  const endless = await list(["--names"]);
  expect([endless.code, endless.stderr]).toEqual([1, expect.stringContaining("does not end")]);
});

test("a selector with wrong syntax is wrong use, with what is wrong and the right form", async () => {
  // google.rpc.BadRequest { field_violations { field: "label_selector", description: "must be pairs" } }
  const violation = Buffer.concat([
    Buffer.from([0x0a, 14]),
    Buffer.from("label_selector"),
    Buffer.from([0x12, 13]),
    Buffer.from("must be pairs"),
  ]);
  const value = Buffer.concat([Buffer.from([0x0a, violation.length]), violation]).toString("base64");
  const details = [{ type: "google.rpc.BadRequest", value }];
  gateway.answers.set("ListSandboxes", { error: { code: "invalid_argument", message: "x", details }, status: 400 });
  expect(await list(["-l", "team"])).toEqual({
    code: 2,
    stdout: "",
    stderr: 'error: --selector "team": must be pairs\n  next: Write --selector KEY=VALUE,KEY2=VALUE2\n',
  });
});

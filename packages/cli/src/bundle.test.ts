import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";

const exec = promisify(execFile);
const root = join(import.meta.dirname, "../../..");
let folder: string;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "openshell-bundle-"));
  await exec(process.execPath, [join(root, "tools/build.ts"), folder], { cwd: root });
  writeFileSync(
    join(folder, "spy.mjs"),
    `import { registerHooks } from "node:module";
import { appendFileSync } from "node:fs";
registerHooks({ load(url, context, next) { appendFileSync(process.env.SPY_FILE, url + "\\n"); return next(url, context); } });
`,
  );
}, 60_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Files of the bundle that one command line loaded, and Node's modules whose every export it evaluated. */
async function loaded(argv: string[], env: Record<string, string> = {}) {
  const spyFile = join(folder, "spy.txt");
  writeFileSync(spyFile, "");
  const options = {
    timeout: 4_000,
    killSignal: "SIGKILL" as const,
    env: { HOME: folder, XDG_RUNTIME_DIR: folder, XDG_STATE_HOME: folder, SPY_FILE: spyFile, ...env },
  };
  await exec(process.execPath, ["--import", join(folder, "spy.mjs"), join(folder, "cli.mjs"), ...argv], options).catch(
    () => {},
  );
  const urls = readFileSync(spyFile, "utf8").trim().split("\n");
  return urls.map((url) => url.replace(/^file:\/\//, "").replace(`${folder}/`, ""));
}

/** Answers every call with an empty message: enough to get through the unary part of a command. */
async function stand(): Promise<{ url: string } & AsyncDisposable> {
  const server = createServer((request, response) => {
    request.resume();
    response.setHeader("content-type", "application/json");
    response.end("{}");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}`,
    [Symbol.asyncDispose]: () =>
      new Promise((resolve) => {
        server.closeAllConnections();
        server.close(() => resolve());
      }),
  };
}

test("status loads two files: no protobuf, no Connect, no library at all", async () => {
  await using gateway = await stand();
  expect(await loaded(["status", "--gateway-endpoint", gateway.url])).toEqual(["cli.mjs", "cli-main.mjs"]);
  const text = readFileSync(join(folder, "cli-main.mjs"), "utf8");
  expect(text).not.toContain("node_modules/");
  // One import statement of a Node module would evaluate every export of it.
  expect(text).not.toMatch(/^import .*"node:/m);
});

test("run loads two files before the command runs", async () => {
  await using gateway = await stand();
  // The stand-in speaks no HTTP/2, so the command never gets to attach and is ended.
  const files = await loaded(["run", "--gateway-endpoint", gateway.url, "--", "true"]);
  expect(files.filter((file) => !/^(chunks\/|node:)/.test(file))).toEqual(["cli.mjs", "cli-main.mjs"]);
});

test("the compile cache is used where it can be written", async () => {
  await loaded(["--version"]);
  const { readdirSync } = await import("node:fs");
  const [version] = readdirSync(join(folder, "compile-cache"));
  expect(readdirSync(join(folder, "compile-cache", version!)).length).toBeGreaterThan(0);
});

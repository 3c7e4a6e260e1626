import { execFileSync } from "node:child_process";
import {
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { createServer, type Server } from "node:net";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { SECRET } from "./testing/bad-values.ts";
import { ownCertificate } from "./testing/certificate.ts";
import { FakeGateway } from "./testing/fake-gateway.ts";
import { problem } from "./testing/outcome-problem.ts";
import { runCommandLine } from "./testing/surroundings.ts";

/** Every file that the command line reads, in every state that a file can be in. */

// A machine under load takes ten times as long.
vi.setConfig({ testTimeout: 120_000 });

let gateway: FakeGateway;
let folder: string;
const servers: Server[] = [];
beforeAll(async () => {
  gateway = await FakeGateway.start();
  folder = join(gateway.folder, "files");
  mkdirSync(folder);
  gateway.answers.set("GetSandbox", { message: { sandbox: { metadata: { name: "dev" }, status: {} } } });
  gateway.answers.set("GetSandboxConfig", { message: { version: 1 } });
});
afterAll(async () => {
  for (const server of servers) server.close();
  await gateway[Symbol.asyncDispose]();
});

/** Puts something in the place of a file. */
type Put = (path: string) => void | Promise<void>;
const content =
  (data: string | Buffer): Put =>
  (path) =>
    writeFileSync(path, data);
const MEBIBYTE = 1024 * 1024;

/** What is no file of text, whatever is expected of it. */
const NO_TEXT: Readonly<Record<string, Put>> = {
  "UTF-16": content(Buffer.from("\ufeffversion: 1\n", "utf16le")),
  "UTF-16 without a mark": content(Buffer.from("version: 1\n", "utf16le")),
  "Latin-1": content(Buffer.from("# gr\u00fc\u00dfe\nversion: 1\n", "latin1")),
  zeros: content(Buffer.alloc(4096)),
  huge: content("#".repeat(2 * MEBIBYTE)),
  "a folder": (path) => void mkdirSync(path),
  "a named pipe": (path) => void execFileSync("mkfifo", [path]),
  "a link to a named pipe": (path) => {
    execFileSync("mkfifo", [`${path}.pipe`]);
    symlinkSync(`${path}.pipe`, path);
  },
  "a socket": async (path) => {
    const server = createServer();
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(path, resolve));
  },
  "an endless device": (path) => symlinkSync("/dev/zero", path),
  "a link to itself": (path) => symlinkSync(path, path),
};

const aliases = Array.from(
  { length: 30 },
  (_, level) =>
    `a${level}: &a${level} [${Array(10)
      .fill(level === 0 ? "x" : `*a${level - 1}`)
      .join(", ")}]`,
);

/** What is text and no policy. */
const NO_POLICY: Readonly<Record<string, string>> = {
  "cut off": "version: 1\nnetwork_policies:\n  a:\n    endpoints: [{host: a.exam",
  "cut off JSON": '{"version": 1, "network_policies": {',
  "of another version": "version: 2\n",
  "without a version": "network_policies: {}\n",
  "a list": "- version: 1\n",
  "a number": "1\n",
  null: "null\n",
  "with a key twice": "version: 1\nversion: 1\n",
  "with an unknown key": "version: 1\nverison: 1\n",
  "with a forged line": 'version: 1\n"a\\nerror: forged\\u001b[2J": 1\n',
  "an alias bomb": `version: 1\n${aliases.join("\n")}\n`,
  "nested too deeply": `version: ${"[".repeat(20_000)}`,
  "nested too deeply as JSON": `{"version": ${'{"a":'.repeat(20_000)}1${"}".repeat(20_000)}}`,
  "several documents": "version: 1\n---\nversion: 1\n",
  "with a tag": "version: !!js/function 'return 1'\n",
  "with a key that JavaScript knows": "version: 1\n__proto__: {x: 1}\nconstructor: 1\n",
};

/** All of what lies in a place, so that a change shows. */
function look(path: string): string {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return "nothing";
  const kind = `${stat.mode} ${stat.ino}`;
  if (stat.isSymbolicLink()) return `${kind} -> ${readlinkSync(path)}`;
  if (stat.isDirectory()) return `${kind} ${readdirSync(path).join()}`;
  return stat.isFile() ? `${kind} ${readFileSync(path, "latin1")}` : kind;
}

let number = 0;
const fresh = (): string => join(folder, `f${number++}.yaml`);

/** Runs a command with something in place of the file at `path`; gives what is wrong with how it ended. */
async function attempt(
  path: string,
  put: Put,
  argv: readonly string[],
  what: string,
  env: object = {},
): Promise<string[]> {
  mkdirSync(dirname(path), { recursive: true });
  await put(path);
  const before = look(path);
  gateway.calls.length = 0;
  const outcome = await runCommandLine(argv, { cwd: folder, env: { ...gateway.env, ...env } });
  const sent = gateway.calls
    .map(({ method }) => method)
    .filter((method) => /^(?:Create|Update|Delete|Start|Stop)/.test(method));
  const after = look(path);
  rmSync(path, { recursive: true, force: true });
  rmSync(`${path}.pipe`, { force: true });
  const { code, stderr } = outcome;
  const found =
    problem({ ...outcome, sent }, false, false) ??
    (code === 0 ? "it was taken" : undefined) ??
    (sent.length > 0 ? `${sent.join(", ")} was sent` : undefined) ??
    (after === before ? undefined : "the file was changed") ??
    (stderr.includes(path) || stderr.includes(path.split("/").at(-1)!) ? undefined : "the file is not named");
  return found === undefined ? [] : [`${what}: ${found}: ${code} ${JSON.stringify(stderr.slice(0, 400))}`];
}

describe("a policy file", () => {
  const commands = (file: string): readonly (readonly string[])[] => [
    ["policy", "set", "dev", "--policy", file],
    ["sandbox", "create", "--detach", "--policy", file],
    ["policy", "explain", "--policy", file, "--host", "a.example.com"],
  ];

  it("that is no text is refused at once by every command that takes one", async () => {
    const wrong: string[] = [];
    for (const [what, put] of Object.entries({
      ...NO_TEXT,
      "a link to nothing": ((path) => symlinkSync("nowhere", path)) satisfies Put,
    })) {
      for (const index of [0, 1, 2]) {
        const path = fresh();
        wrong.push(...(await attempt(path, put, commands(path)[index]!, what)));
      }
      const path = fresh();
      wrong.push(...(await attempt(path, put, ["policy", "validate", path], `${what}, validated`)));
    }
    expect(wrong).toEqual([]);
  });

  it("that is no policy is refused with the place of every mistake", async () => {
    const wrong: string[] = [];
    for (const [what, text] of Object.entries(NO_POLICY)) {
      const path = fresh();
      for (const argv of commands(path)) wrong.push(...(await attempt(path, content(text), argv, what)));
    }
    expect(wrong).toEqual([]);
  });

  it("may begin with a byte order mark and end its lines as on Windows", async () => {
    const path = fresh();
    writeFileSync(path, "\ufeffversion: 1\r\nnetwork_policies: {}\r\n");
    expect(await runCommandLine(["policy", "validate", path], { env: gateway.env })).toMatchObject({ code: 0 });
  });

  it("on standard input is judged as a file is", async () => {
    for (const input of [
      Buffer.from("version: 1 # \u00fc", "latin1"),
      Buffer.from("\ufeffversion: 1", "utf16le"),
      Buffer.alloc(2 * MEBIBYTE, "#"),
      Buffer.alloc(0),
    ]) {
      const outcome = await runCommandLine(["policy", "set", "dev", "--policy", "-"], {
        env: gateway.env,
        stdin: input,
      });
      expect([outcome.code, problem({ ...outcome, sent: [] }, false, false)]).toEqual([1, undefined]);
    }
  });
});

describe("a registration of a gateway", () => {
  const root = (): string => join(gateway.folder, "config", "openshell");
  const ask = ["sandbox", "get", "dev"];
  const metadata = { gateway_endpoint: "https://127.0.0.1:1", is_remote: true, auth_mode: "mtls" };

  it("active_gateway: what holds no name is refused, and left as it is", async () => {
    const path = join(root(), "active_gateway");
    const wrong: string[] = [];
    const names: Readonly<Record<string, Put>> = {
      ...NO_TEXT,
      "a path": content("../../x\n"),
      "two names": content("a\nb\n"),
      escape: content("\u001b[2J"),
      "very long": content("a".repeat(5000)),
    };
    for (const [what, put] of Object.entries(names)) wrong.push(...(await attempt(path, put, ask, what)));
    expect(wrong).toEqual([]);
  });

  it("metadata.json: what cannot be used is refused, and left as it is", async () => {
    const path = join(root(), "gateways", "far", "metadata.json");
    const wrong: string[] = [];
    const texts = {
      "cut off": '{"gateway_endpoint": "htt',
      "of no length": "",
      null: "null",
      "a list": "[]",
      "of another type": '{"gateway_endpoint": 5}',
      "without an endpoint": "{}",
      "with a bad endpoint": '{"gateway_endpoint": "ftp://x"}',
      "with a password": `{"gateway_endpoint": "https://me:${SECRET}@x"}`,
      "nested too deeply": "[".repeat(100_000),
    };
    const puts = {
      ...NO_TEXT,
      ...Object.fromEntries(Object.entries(texts).map(([what, text]) => [what, content(text)])),
    };
    for (const [what, put] of Object.entries(puts))
      wrong.push(...(await attempt(path, put, [...ask, "--gateway", "far"], what)));
    expect(wrong).toEqual([]);
  });

  it.each(["ca.crt", "tls.crt", "tls.key"])(
    "mtls/%s: what is no certificate or key is refused by name, and not repeated",
    async (name) => {
      const far = join(root(), "gateways", "far");
      mkdirSync(join(far, "mtls"), { recursive: true });
      writeFileSync(join(far, "metadata.json"), JSON.stringify(metadata));
      const { key, certificate } = ownCertificate(folder);
      for (const [file, text] of [
        ["ca.crt", certificate],
        ["tls.crt", certificate],
        ["tls.key", key],
      ] as const)
        writeFileSync(join(far, "mtls", file), text);
      const path = join(far, "mtls", name);
      const wrong: string[] = [];
      const texts = {
        empty: "",
        garbage: SECRET,
        "cut off": (name === "tls.key" ? key : certificate).slice(0, 200),
        "of the other kind": name === "tls.key" ? certificate : key,
        "without its content": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
      };
      const puts = {
        ...NO_TEXT,
        ...Object.fromEntries(Object.entries(texts).map(([what, text]) => [what, content(text)])),
        missing: () => {},
      };
      for (const [what, put] of Object.entries(puts)) {
        rmSync(path, { force: true });
        wrong.push(...(await attempt(path, put, [...ask, "--gateway", "far"], what)));
      }
      rmSync(far, { recursive: true });
      expect(wrong).toEqual([]);
    },
  );

  it("last_sandbox and the gateway's record are only hints: without them the sandbox has to be named", async () => {
    const last = join(root(), "gateways", "openshell", "last_sandbox");
    const record = join(dirname(gateway.socket), "gateway.json");
    for (const put of [
      ...Object.values(NO_TEXT),
      content(""),
      content("{}"),
      content("default"),
      content('{"pid": "x"}'),
    ]) {
      for (const path of [last, record]) {
        mkdirSync(dirname(path), { recursive: true });
        await put(path);
        const outcome = await runCommandLine(["sandbox", "get"], { env: gateway.env });
        expect([outcome.code, problem({ ...outcome, sent: [] }, true, false)]).toEqual([2, undefined]);
        expect((await runCommandLine(["sandbox", "get", "dev"], { env: gateway.env })).code).toBe(0);
        rmSync(path, { recursive: true, force: true });
        rmSync(`${path}.pipe`, { force: true });
      }
    }
  });
});

describe("a credential on standard input", () => {
  it.each([
    ["Latin-1", Buffer.from(`${SECRET}\u00fc`, "latin1")],
    ["UTF-16", Buffer.from(`\ufeff${SECRET}`, "utf16le")],
    ["NUL", Buffer.from(`${SECRET}\0`)],
    ["nothing", Buffer.alloc(0)],
    ["a line end alone", Buffer.from("\n")],
    ["too much", Buffer.alloc(100_000, SECRET)],
  ])("of %s is refused before it is sent, and not shown", async (_, stdin) => {
    gateway.calls.length = 0;
    const outcome = await runCommandLine(
      ["provider", "create", "--name", "p", "--type", "generic", "--credential", "A=-"],
      { env: gateway.env, stdin },
    );
    expect([outcome.code, problem({ ...outcome, sent: [] }, false, false), gateway.calls]).toEqual([1, undefined, []]);
  });
});

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { runOk } from "../command.ts";

/** Repositories that a host serves: name (as in `NAME.git`) to files of the first commit. */
export type Repositories = Readonly<Record<string, Readonly<Record<string, string>>>>;

/** The head of a CGI answer; more is an error. */
const MAX_CGI_HEAD_BYTES = 64 * 1024;

const GIT_ENVIRONMENT = {
  GIT_CONFIG_NOSYSTEM: "1",
  GIT_CONFIG_GLOBAL: "/dev/null",
  GIT_AUTHOR_NAME: "Test",
  GIT_AUTHOR_EMAIL: "test@example-allowed.com",
  GIT_COMMITTER_NAME: "Test",
  GIT_COMMITTER_EMAIL: "test@example-allowed.com",
} as const;

/** Bare repositories in a temporary folder, served by git's own smart HTTP program, `git http-backend` (CGI, RFC 3875). */
export class GitBackend implements Disposable {
  /** Contains `NAME.git`. */
  readonly folder: string;

  private constructor(folder: string) {
    this.folder = folder;
  }

  static async create(repositories: Repositories): Promise<GitBackend> {
    const backend = new GitBackend(mkdtempSync(join(tmpdir(), "openshell-git-")));
    try {
      for (const [name, files] of Object.entries(repositories)) await backend.#addRepository(name, files);
      return backend;
    } catch (error) {
      backend[Symbol.dispose]();
      throw error;
    }
  }

  async #addRepository(name: string, files: Readonly<Record<string, string>>): Promise<void> {
    const work = join(this.folder, `${name}.work`);
    const bare = join(this.folder, `${name}.git`);
    const options = { env: GIT_ENVIRONMENT, cwd: this.folder, privileges: "harness" } as const;
    const git = (...argv: string[]) => runOk(["git", "-C", work, ...argv], options);
    await runOk(["git", "init", "--quiet", "--initial-branch=main", work], options);
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(dirname(join(work, path)), { recursive: true });
      writeFileSync(join(work, path), text);
    }
    await git("add", "--all");
    await git("commit", "--quiet", "--allow-empty", "--message", "First");
    await runOk(["git", "clone", "--quiet", "--bare", work, bare], options);
    await runOk(["git", "-C", bare, "config", "http.receivepack", "true"], options);
    rmSync(work, { recursive: true });
  }

  /** True for a path below one of the repositories. */
  serves(target: string): boolean {
    return /^\/[^/?]+\.git\//.test(target);
  }

  /** Answers one request through the CGI program. */
  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://host.invalid");
    const backend = spawn("git", ["http-backend"], {
      stdio: ["pipe", "pipe", "inherit"],
      env: {
        ...GIT_ENVIRONMENT,
        PATH: process.env.PATH,
        GIT_PROJECT_ROOT: this.folder,
        GIT_HTTP_EXPORT_ALL: "1",
        PATH_INFO: decodeURIComponent(url.pathname),
        QUERY_STRING: url.search.slice(1),
        REQUEST_METHOD: request.method,
        CONTENT_TYPE: request.headers["content-type"] ?? "",
        ...(request.headers["content-length"] ? { CONTENT_LENGTH: request.headers["content-length"] } : {}),
        HTTP_CONTENT_ENCODING: request.headers["content-encoding"] ?? "",
        HTTP_GIT_PROTOCOL: (request.headers["git-protocol"] as string | undefined) ?? "",
        GIT_PROTOCOL: (request.headers["git-protocol"] as string | undefined) ?? "",
        REMOTE_ADDR: request.socket.remoteAddress ?? "",
        REMOTE_USER: "test",
      },
    });
    // http-backend may answer without reading the request.
    backend.stdin.on("error", () => {});
    pipeline(request, backend.stdin).catch(() => {});
    response.on("close", () => backend.kill());

    let head = Buffer.alloc(0);
    let started = false;
    for await (const chunk of backend.stdout as AsyncIterable<Buffer>) {
      if (started) {
        response.write(chunk);
        continue;
      }
      head = Buffer.concat([head, chunk]);
      const end = head.indexOf("\r\n\r\n");
      if (end < 0) {
        if (head.length > MAX_CGI_HEAD_BYTES) throw new Error("git http-backend sent no end of its head");
        continue;
      }
      started = true;
      let status = 200;
      for (const line of head.subarray(0, end).toString("latin1").split("\r\n")) {
        const colon = line.indexOf(":");
        const [name, value] = [line.slice(0, colon), line.slice(colon + 1).trim()];
        if (name.toLowerCase() === "status") status = Number.parseInt(value, 10);
        else response.setHeader(name, value);
      }
      response.writeHead(status);
      response.write(head.subarray(end + 4));
    }
    if (!started) throw new Error("git http-backend sent no answer");
    response.end();
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

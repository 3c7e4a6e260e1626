import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { daemonEnvironment, spawnDaemon } from "./daemon.ts";

it("passes on only the variables that a daemon needs", () => {
  const env = { PATH: "/bin", HOME: "/h", XDG_STATE_HOME: "/s", OPENSHELL_X: "1", TZ: undefined };
  const hostile = {
    NODE_OPTIONS: "--inspect",
    SSL_CERT_FILE: "/x",
    HTTPS_PROXY: "http://p",
    LD_PRELOAD: "/l",
    MALLOC_ARENA_MAX: "99",
  };
  expect(daemonEnvironment({ ...env, ...hostile, AWS_SECRET_ACCESS_KEY: "k" })).toEqual({
    PATH: "/bin",
    HOME: "/h",
    XDG_STATE_HOME: "/s",
    OPENSHELL_X: "1",
    MALLOC_ARENA_MAX: "2",
    MALLOC_TRIM_THRESHOLD_: "131072",
  });
});

it("starts a program in a session of its own, without core dumps, private files, and a pipe on descriptor 3", async () => {
  const folder = mkdtempSync(join(tmpdir(), "openshell-daemon-"));
  try {
    const program = join(folder, "program.mjs");
    writeFileSync(
      program,
      `import { readFileSync, writeSync } from "node:fs";
       const said = readFileSync(3, "utf8");
       const limits = readFileSync("/proc/self/limits", "utf8").split("\\n").find((line) => line.startsWith("Max core"));
       const session = readFileSync("/proc/self/stat", "latin1").split(") ")[1].split(" ")[3];
       writeSync(1, JSON.stringify({ said, core: limits.split(/ {2,}/).slice(1, 3), leader: Number(session) === process.pid,
         umask: process.umask(), exec: process.execArgv, args: process.argv.slice(2), cwd: process.cwd(), env: Object.keys(process.env).sort() }));`,
    );
    const output = openSync(join(folder, "log"), "a", 0o600);
    const child = spawnDaemon({ program, args: ["a b"], env: { PATH: "/usr/bin:/bin", HOME: folder }, output });
    closeSync(output);
    (child.stdio[3] as NodeJS.WritableStream).end("secret");
    expect(await once(child, "exit")).toEqual([0, null]);
    expect(JSON.parse(readFileSync(join(folder, "log"), "utf8"))).toEqual({
      said: "secret",
      core: ["0", "0"],
      leader: true,
      umask: 0o77,
      exec: ["--disable-sigusr1"],
      args: ["a b"],
      cwd: "/",
      env: ["HOME", "PATH", "PWD"],
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

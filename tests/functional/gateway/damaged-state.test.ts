import { execFileSync } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { SandboxPhase } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { expectNoLeaks, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { GatewayProcess } from "./gateway-process.ts";
import { createReady, MAIN_PROCESS, run, untilGone, untilPhase, workspaceScope } from "./sandboxes.ts";

/** Puts something in the place of a file or folder that is no longer there. `whole`: where what was there lies meanwhile. */
type Put = (path: string, whole: string) => void;

const nothing: Put = () => {};
const folder: Put = (path) => void mkdirSync(path);
const pipe: Put = (path) => void execFileSync("mkfifo", ["-m", "600", path]);
const content =
  (data: string): Put =>
  (path) =>
    writeFileSync(path, data, { mode: 0o600 });
const cut =
  (part: number): Put =>
  (path, whole) => {
    cpSync(whole, path);
    truncateSync(path, Math.floor(statSync(whole).size * part));
  };
/** As it was, with rights under which only root could use it. */
const closed =
  (rights: number): Put =>
  (path, whole) => {
    cpSync(whole, path, { recursive: true });
    chmodSync(path, rights);
  };

/** Everything below a folder, so that a change shows: kinds, rights, sizes and, of files, what they hold. */
function look(path: string): string {
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return "nothing";
  const kind = `${stat.mode.toString(8)} ${stat.ino}`;
  if (stat.isFile()) return `${kind} ${(stat.mode & 0o400) === 0 ? stat.size : readFileSync(path).toString("base64")}`;
  return stat.isDirectory() && (stat.mode & 0o500) === 0o500 ? `${kind} ${readdirSync(path).toSorted().join()}` : kind;
}

// As root no rights are missing; the rest is the same.
describe.skipIf(mode === "root")("a gateway whose files are damaged", () => {
  it("does not start, names file, cause and next step, and takes up its sandboxes once it is repaired", {
    timeout: 180_000,
  }, async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      await createReady(gateway.local(), "box");
      const main = await run(gateway.local(), "box", "sh", "-c", `echo kept > ~/file; ${MAIN_PROCESS}`);
      await gateway.end("SIGKILL");

      const { state, runtime, logs } = gateway.paths;
      const db = join(state, "gateway.db");
      const cases: [path: string, what: string, put: Put, cause: RegExp][] = [
        [db, "is missing", nothing, /is missing, and the files of 1 sandbox/],
        [db, "is empty", content(""), /is empty, and the files of 1 sandbox/],
        [db, "is cut off", cut(0.5), /is damaged|malformed/],
        [db, "is a folder", folder, /directory/],
        [db, "may not be read", closed(0), /EACCES/],
        [join(state, "keys/kek"), "is missing", nothing, /is missing, and the database was encrypted/],
        [join(state, "keys/kek"), "is cut off", cut(0.5), /has 16 bytes instead of 32/],
        [join(state, "keys/kek"), "is a pipe", pipe, /is no regular file/],
        [join(state, "keys/kek"), "is open to others", closed(0o644), /may be read by other users/],
        [join(state, "keys/kek"), "may not be read", closed(0), /EACCES/],
        [join(state, "keys"), "is a file", content("x"), /EEXIST|ENOTDIR/],
        [join(state, "keys/ca.key"), "may not be read", closed(0), /may not be read by this user/],
        [join(state, "keys/server.crt"), "is a pipe", pipe, /is a named pipe/],
        [join(state, "lock"), "is text", content("x".repeat(9_000)), /not a database/],
        [join(state, "sandboxes"), "is a file", content("x"), /EEXIST|ENOTDIR/],
        [join(logs, "gateway.log"), "is a pipe", pipe, /ENXIO/],
        [join(runtime, "host.sock"), "is a folder", folder, /EISDIR|EADDRINUSE|ENOTEMPTY|EPERM/],
      ];
      const problems: string[] = [];
      for (const [path, what, put, cause] of cases) {
        const whole = join(dirname(path), ".whole");
        if (existsSync(path)) renameSync(path, whole);
        put(path, whole);
        const was = look(path);
        const { line } = await gateway.start();
        const told = line.ready ? "it is ready" : `${line.message}. ${line.next}`;
        if (line.ready) await gateway.end("SIGKILL");
        const stderr = await gateway.stderr;
        const good = !line.ready && line.message.includes(path) && cause.test(line.message) && line.next !== "";
        if (!good || stderr !== `openshell gateway: ${told}\n`) problems.push(`${path} ${what}: ${told}\n${stderr}`);
        if (look(path) !== was) problems.push(`${path} ${what}: has changed`);
        rmSync(path, { recursive: true, force: true });
        if (existsSync(whole)) renameSync(whole, path);
      }
      expect(problems).toEqual([]);

      await gateway.started();
      const client = gateway.local();
      await untilPhase(client, "box", SandboxPhase.READY);
      expect(await run(client, "box", "sh", "-c", `cat ~/file; ${MAIN_PROCESS}`)).toBe(`kept\n${main}`);

      // What the driver has of a sandbox is damaged: that one says so and goes on when it is restored; others do not notice.
      const records = { hurt: "launch.json", worn: "started.json" };
      const ids = await Promise.all(Object.keys(records).map((name) => createReady(client, name)));
      const mains = await Promise.all(Object.keys(records).map((name) => run(client, name, "sh", "-c", MAIN_PROCESS)));
      await gateway.end("SIGKILL");
      const paths = Object.values(records).map((file, at) => join(state, "sandboxes", ids[at]!, file));
      const were = paths.map((path) => readFileSync(path));
      for (const path of paths) writeFileSync(path, "{");
      await gateway.started();
      const again = gateway.local();
      await untilPhase(again, "box", SandboxPhase.READY);
      expect(await run(again, "box", "sh", "-c", MAIN_PROCESS)).toBe(main);
      for (const [at, name] of Object.keys(records).entries()) {
        await expect
          .poll(
            async () => {
              const { sandbox } = await again.getSandbox({ workspaceScope, name });
              return sandbox!.status!.conditions.find(({ type }) => type === "Ready")?.message;
            },
            { timeout: 20_000 },
          )
          .toMatch(`${paths[at]!} is damaged. Restore the file`);
        expect(readFileSync(paths[at]!, "utf8")).toBe("{");
      }
      for (const [at, path] of paths.entries()) writeFileSync(path, were[at]!);
      for (const [at, name] of Object.keys(records).entries()) {
        await untilPhase(again, name, SandboxPhase.READY);
        expect(await run(again, name, "sh", "-c", MAIN_PROCESS)).toBe(mains[at]);
        await again.deleteSandbox({ workspaceScope, name });
        await untilGone(again, name);
      }
      await again.deleteSandbox({ workspaceScope, name: "box" });
      await untilGone(again, "box");
      await gateway.end();
    }
    await expectNoLeaks(before);
  });
});

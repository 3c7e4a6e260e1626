import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestHome } from "../../support/home.ts";
import { mode } from "../../support/mode.ts";
import { OPENSHELL } from "../../support/openshell.ts";

/** What only the real command, started by a real shell, can be given; the rest is tried in packages/cli/src/bad-input.test.ts. */

/** Node starts, reads and ends within it many times over. Milliseconds. */
const LIMIT_MS = 30_000;

let home: TestHome;
beforeAll(() => {
  home = TestHome.create();
});
afterAll(() => {
  bash(`chmod -R u+rwx . ; "$openshell" gateway stop --sandboxes stop`);
  home[Symbol.dispose]();
});

/** Runs a line of bash in which `$openshell` is the command. */
function bash(line: string) {
  const { status, signal, stdout, stderr } = spawnSync("bash", ["-c", line], {
    env: { ...home.env, PATH: process.env["PATH"] ?? "/usr/bin:/bin", openshell: OPENSHELL[0]! },
    cwd: home.path(),
    encoding: "utf8",
    timeout: LIMIT_MS,
    killSignal: "SIGKILL",
  });
  return { status, signal, stdout, stderr };
}

/** One cause, a next step, nothing of the inside, and nothing that a terminal obeys. */
function expectRefused(line: string, status: number, cause: RegExp): void {
  const result = bash(line);
  expect([line, result.signal, result.status, result.stderr]).toEqual([
    line,
    null,
    status,
    expect.stringMatching(cause),
  ]);
  expect(result.stderr).toMatch(/^error: [^\n]+\n(?: {2}- [^\n]+\n)* {2}next: [^\n]+\n(?: {2}code: \w+\n)?$/);
  expect(result.stderr).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e]| at .*:\d+:\d+/);
  expect(result.stdout).toBe("");
}

// The same program and the same parsing in both modes.
describe.skipIf(mode === "root")("bad input from a shell", () => {
  test("arguments that are not UTF-8, too long or full of control characters", () => {
    expectRefused(`"$openshell" sandbox get "$(printf 'gr\\374n')"`, 2, /is not UTF-8/);
    expectRefused(`"$openshell" sandbox get "$(printf '\\033[2Jx')" y`, 2, /unexpected argument "y"/);
    expectRefused(`"$openshell" "$(printf '\\033[2J\\302\\233')"`, 2, /there is no command/);
    expectRefused(`"$openshell" logs dev --lines="$(head -c 100000 /dev/zero | tr '\\0' 9)"`, 2, /--lines "9+…"/);
    expectRefused(`"$openshell" policy set dev --policy=`, 2, /empty value/);
  });

  test("files that are none, without waiting for them", () => {
    mkdirSync(home.path("folder"));
    expect(bash("mkfifo pipe").status).toBe(0);
    expectRefused(`"$openshell" policy explain --host a --policy pipe`, 1, /is a named pipe/);
    expectRefused(`"$openshell" policy explain --host a --policy folder`, 1, /is a folder/);
    expectRefused(`"$openshell" policy explain --host a --policy /dev/zero`, 1, /is a device/);
    expectRefused(`printf 'version: 1 # \\374' | "$openshell" policy explain --host a --policy -`, 1, /is not UTF-8/);
    expectRefused(`"$openshell" policy explain --host a --policy - <&-`, 1, /.+/);
  });

  test("a policy that a shell passes as a descriptor is read", () => {
    for (const line of [`<(echo 'version: 1')`, `/dev/stdin < <(echo 'version: 1')`]) {
      expect(bash(`"$openshell" policy validate ${line}`)).toMatchObject({
        status: 0,
        stderr: expect.stringContaining("is valid"),
      });
    }
  });

  test("registrations that are damaged are named, and stay as they are", () => {
    const root = `$XDG_CONFIG_HOME/openshell`;
    expect(
      bash(
        `mkdir -p ${root}/gateways/far; echo '../x' > ${root}/active_gateway; echo '{' > ${root}/gateways/far/metadata.json`,
      ).status,
    ).toBe(0);
    expectRefused(`"$openshell" sandbox list`, 1, /active_gateway holds no name/);
    expectRefused(`"$openshell" sandbox list --gateway far`, 1, /metadata\.json is not JSON/);
    expect(bash(`cat ${root}/active_gateway ${root}/gateways/far/metadata.json`).stdout).toBe("../x\n{\n");
  });

  test("a configuration that cannot be used starts nothing", { timeout: 60_000 }, () => {
    const config = `$XDG_CONFIG_HOME/openshell`;
    for (const [text, cause] of [
      ["openshell.version = 2\nlocal.tmp_size = 1979-05-27", /gateway\.toml: local\.tmp_size is a date/],
      ["openshell.version = ", /gateway\.toml:1:\d+: is not valid TOML: ./],
    ] as const) {
      expect(
        bash(
          `mkdir -p ${config}; rm -f ${config}/*.toml ${config}/active_gateway; printf '${text}' > ${config}/gateway.toml`,
        ).status,
      ).toBe(0);
      expectRefused(`"$openshell" gateway start`, 1, cause);
    }
    expect(bash(`chmod 0 ${config}/gateway.toml`).status).toBe(0);
    expectRefused(`"$openshell" gateway start`, 1, /gateway\.toml: may not be read by this user/);
    expect(
      bash(`rm -f ${config}/gateway.toml; ls "$XDG_STATE_HOME/openshell" "$XDG_RUNTIME_DIR"/openshell/*/*.sock`).stdout,
    ).not.toMatch(/gateway\.db|sock/);
  });

  test("roots that cannot be used make no sandbox", { timeout: 60_000 }, () => {
    expect(
      bash(`mkdir -p in/closed in/empty in/hidden; echo x > in/f.tar; cp in/f.tar in/hidden; touch in/closed/f;
        chmod 0 in/f.tar in/closed; chmod 600 in/hidden; mkfifo in/pipe.tar; "$openshell" gateway start`).status,
    ).toBe(0);
    for (const [from, status, cause] of [
      ["in/f.tar", 1, /in\/f\.tar may not be read by the gateway's user/],
      ["./in/closed", 1, /in\/closed may not be read by the gateway's user/],
      ["./in/empty", 1, /in\/empty holds nothing/],
      ["in/hidden/f.tar", 2, /may not be reached by this user/],
      ["in/pipe.tar", 1, /is a socket, device or pipe/],
    ] as const) {
      const result = bash(`"$openshell" sandbox create --from ${from} --detach -- true`);
      expect([from, result.status, result.stdout]).toEqual([from, status, ""]);
      expect(result.stderr).toMatch(cause);
      expect(result.stderr).toMatch(/^error: [^\n]+\n(?: {2}[-a-z][^\n]*\n)*$/);
    }
    expect(bash(`"$openshell" sandbox list -o json`).stdout).toMatch(/"sandboxes": \[\]/);
  });
});

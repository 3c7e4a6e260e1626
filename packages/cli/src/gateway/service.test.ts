import { spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { runCommandLine } from "../testing/surroundings.ts";
import { serviceUnit, unitText } from "./service-unit.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-service-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

/** `[Section] key=value` lines of a unit file. */
function settings(text: string): readonly string[] {
  let section = "";
  const found: string[] = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("[")) section = line;
    else if (line !== "" && !line.startsWith("#")) found.push(`${section} ${line}`);
  }
  return found;
}

const facts = { gateway: "work", scope: "user", launcher: "/opt/open shell/openshell", env: {} } as const;

describe("the unit of a gateway", () => {
  it("is a file of the user, or of the machine for root with the system-wide folders", () => {
    const user = { uid: 1000, home: "/home/u", env: {} };
    expect(serviceUnit("work", user)).toEqual({
      scope: "user",
      name: "openshell-gateway-work.service",
      path: "/home/u/.config/systemd/user/openshell-gateway-work.service",
      wanted: "/home/u/.config/systemd/user/default.target.wants/openshell-gateway-work.service",
    });
    expect(serviceUnit("work", { ...user, env: { XDG_CONFIG_HOME: "/c" } }).path).toMatch(/^\/c\/systemd\/user\//);
    expect(serviceUnit("work", { ...user, uid: 0, home: "/root" })).toMatchObject({
      scope: "system",
      path: "/etc/systemd/system/openshell-gateway-work.service",
      wanted: "/etc/systemd/system/multi-user.target.wants/openshell-gateway-work.service",
    });
    expect(serviceUnit("work", { uid: 0, home: "/r", env: { XDG_STATE_HOME: "/s" } }).scope).toBe("user");
  });

  it("restarts a failed gateway, and signals nothing but the gateway", () => {
    const found = settings(unitText({ ...facts, env: { PATH: "/bin", XDG_STATE_HOME: "/s", API_KEY: "secret" } }));
    expect(found).toEqual([
      "[Unit] Description=OpenShell gateway work",
      "[Unit] StartLimitIntervalSec=60",
      "[Unit] StartLimitBurst=5",
      "[Service] Type=exec",
      '[Service] ExecStart="/opt/open shell/openshell" gateway start --foreground --name work',
      '[Service] Environment="PATH=/bin"',
      '[Service] Environment="XDG_STATE_HOME=/s"',
      "[Service] Restart=on-failure",
      "[Service] RestartSec=1",
      "[Service] TimeoutStopSec=45",
      "[Service] KillMode=process",
      "[Service] OOMPolicy=continue",
      "[Service] TasksMax=infinity",
      "[Service] Delegate=yes",
      "[Service] UMask=0077",
      "[Service] LimitCORE=0",
      "[Install] WantedBy=default.target",
    ]);
  });

  it("writes paths so that systemd reads them as they are, and refuses what it could not", () => {
    const text = unitText({ ...facts, launcher: '/a "b" %h\\c', env: { PATH: "/x y:/50%" } });
    expect(text).toContain('ExecStart="/a \\"b\\" %%h\\\\c" gateway');
    expect(text).toContain('Environment="PATH=/x y:/50%%"');
    for (const bad of ["/a\nb", "/a\u007f", "/\0"]) {
      expect(() => unitText({ ...facts, launcher: bad })).toThrow(/control characters/);
      expect(() => unitText({ ...facts, env: { PATH: bad } })).toThrow(/control characters/);
    }
  });

  it.skipIf(spawnSync("systemd-analyze", ["--version"]).status !== 0)("has systemd's own approval", () => {
    for (const scope of ["user", "system"] as const) {
      const launcher = join(folder, "open $HOME 50% shell");
      writeFileSync(launcher, "#!/bin/sh\n", { mode: 0o755 });
      const file = join(folder, "openshell-gateway-work.service");
      writeFileSync(file, unitText({ ...facts, scope, launcher, env: { PATH: "/bin", XDG_STATE_HOME: "/s 1" } }));
      const check = ["--man=no", "--generators=no", "--recursive-errors=no", "verify", file];
      const env = { PATH: "/usr/bin:/bin", HOME: folder, XDG_RUNTIME_DIR: folder };
      const result = spawnSync("systemd-analyze", [`--${scope}`, ...check], { encoding: "utf8", env });
      expect([result.status, result.stderr]).toEqual([0, ""]);
      rmSync(launcher);
      const missing = spawnSync("systemd-analyze", [`--${scope}`, ...check], { encoding: "utf8", env });
      expect(missing.stderr).toMatch(/not executable/);
    }
  });
});

describe("gateway start --service where no manager answers", () => {
  const unit = () => join(folder, "c/systemd/user/openshell-gateway-openshell.service");
  const launcher = () => join(folder, "openshell");
  const run = (args: readonly string[], env: Record<string, string> = {}) => {
    const [XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR] = ["c", "s", "r"].map((name) => join(folder, name));
    const base = { HOME: folder, XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR, PATH: "/nonexistent" };
    return runCommandLine(["gateway", ...args], { env: { ...base, OPENSHELL_LAUNCHER: launcher(), ...env } });
  };
  beforeEach(() => writeFileSync(launcher(), "#!/bin/sh\n", { mode: 0o755 }));

  it("writes the service, once, and says what to do", async () => {
    const first = await run(["start", "--service"]);
    expect(first).toMatchObject({
      code: 1,
      stdout: "",
      stderr: expect.stringContaining("user manager does not answer here (systemctl is not installed)"),
    });
    expect(first.stderr).toContain(unit());
    expect(first.stderr).toMatch(/systemctl --user enable --now openshell-gateway-openshell\.service/);
    expect(first.stderr).toMatch(/openshell gateway start/);
    const text = readFileSync(unit(), "utf8");
    expect(text).toContain(`ExecStart="${launcher()}" gateway start --foreground --name openshell`);
    const { ino, mtimeNs } = statSync(unit(), { bigint: true });
    expect((await run(["start", "--service"])).code).toBe(1);
    expect(statSync(unit(), { bigint: true })).toMatchObject({ ino, mtimeNs });
    expect(readdirSync(join(unit(), ".."))).toEqual(["openshell-gateway-openshell.service"]);
    await run(["start", "--service"], { XDG_CACHE_HOME: "/elsewhere" });
    expect(readFileSync(unit(), "utf8")).toContain("XDG_CACHE_HOME=/elsewhere");
  });

  it("repeats what a manager that refuses said, on one line", async () => {
    mkdirSync(join(folder, "bin"));
    const refusing = "#!/bin/sh\nprintf 'Failed to connect\\033[31m to bus\\nmore\\n' >&2\nexit 1\n";
    writeFileSync(join(folder, "bin/systemctl"), refusing, { mode: 0o755 });
    const { stderr } = await run(["start", "--service"], { PATH: join(folder, "bin") });
    expect(stderr).toMatch(/\(Failed to connect.* to bus\)/);
    expect(stderr).not.toMatch(/\u001b|more/);
  });

  it("takes the service away again", async () => {
    await run(["start", "--service"]);
    const gone = await run(["stop", "--service"]);
    expect(gone).toMatchObject({
      code: 0,
      stderr: expect.stringContaining("Service openshell-gateway-openshell.service removed"),
    });
    expect(existsSync(unit())).toBe(false);
    expect(await run(["stop", "--service"])).toMatchObject({
      code: 0,
      stderr: expect.stringContaining("is no service"),
    });
  });

  it("refuses without the launcher, with a folder that cannot be written, and with --foreground", async () => {
    const without = await run(["start", "--service"], { OPENSHELL_LAUNCHER: "" });
    expect(without).toMatchObject({ code: 1, stderr: expect.stringContaining("started in another way") });
    writeFileSync(join(folder, "c"), "a file");
    const refused = await run(["start", "--service"]);
    expect(refused).toMatchObject({ code: 1, stderr: expect.stringMatching(/cannot be written.*\n {2}next: /) });
    expect((await run(["start", "--service", "--foreground"])).code).toBe(2);
  });
});

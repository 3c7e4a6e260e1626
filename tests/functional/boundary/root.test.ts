import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launchSandbox } from "@openshell/boundary/local/launch.ts";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { nativeParts, openSandbox, runsAsRoot, type TestSandbox, testPlan } from "../../support/boundary.ts";

/** In root mode the volume belongs to a person, who is not root. */
const OWNER = runsAsRoot ? 12_345 : process.getuid!();

let folder: string;
let sandbox: TestSandbox;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "osb-root-"));
  chmodSync(folder, 0o755);
  const make = (name: string, mode = 0o700): string => {
    const path = join(folder, name);
    mkdirSync(path, { mode });
    writeFileSync(join(path, "mine"), name, { mode: 0o600 });
    if (runsAsRoot) {
      chownSync(path, OWNER, OWNER);
      chownSync(join(path, "mine"), OWNER, OWNER);
    }
    return path;
  };
  const idmap = runsAsRoot ? { hostUid: OWNER, hostGid: OWNER } : undefined;
  const volume = (name: string, readOnly: boolean): RootStep => ({
    kind: "volume",
    source: make(name),
    target: `/work/${name}`,
    readOnly,
    idmap,
  });
  writeFileSync(join(folder, "file"), "a file", { mode: 0o644 });
  const bind = { readOnly: true, recursive: false, noexec: true };
  sandbox = await openSandbox({
    extraSteps: [
      volume("rw", false),
      volume("ro", true),
      { kind: "bind", source: join(folder, "file"), target: "/opt/deep/file", optional: false, ...bind },
      { kind: "bind", source: join(folder, "missing"), target: "/opt/missing", optional: true, ...bind },
    ],
  });
});
afterAll(async () => {
  await sandbox?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});
const sh = async (script: string): Promise<string> => {
  const { stdout, stderr } = await sandbox.run(["sh", "-c", script]);
  return stdout + stderr;
};

describe("root view", () => {
  it("is read-only but for the agent's own places", async () => {
    // Landlock is not what holds here: the mounts themselves are read-only.
    expect(await sh("cut -d' ' -f2,4 /proc/mounts | cut -d, -f1 | grep -E '^/(usr|bin|dev)? ' | sort -u")).toMatch(
      /^\/ ro\n(\/bin ro\n)?\/dev ro\n\/usr ro\n$/,
    );
    expect(await sh("touch /x /etc/x /usr/x /dev/x 2>&1 | grep -c 'cannot touch'")).toBe("4\n");
    expect(await sh("touch /tmp/x /home/agent/x && echo fine")).toBe("fine\n");
  });

  it("shows no mount of the host's and no nested trace of the old root", async () => {
    const mounts = await sh("cut -d' ' -f5 /proc/self/mountinfo");
    for (const point of mounts.trim().split("\n")) {
      expect(point).toMatch(/^\/($|usr|bin|sbin|lib|tmp|proc|dev|home\/agent|work|opt\/deep)/);
    }
  });

  it("every mount is nosuid, and nodev except the devices", async () => {
    const flags = await sh("while read -r d p t o r; do echo $p $o; done < /proc/mounts");
    for (const line of flags.trim().split("\n")) {
      const [point = "", options = ""] = line.split(" ");
      expect(options.split(","), line).toContain("nosuid");
      if (!point.startsWith("/dev/")) expect(options.split(","), line).toContain("nodev");
    }
  });

  it("hides init and its helpers in /proc, for every identity", async () => {
    expect(
      await sh(
        "ls /proc/1 2>&1 | grep -c 'No such file'; ls -d /proc/[0-9]* | wc -l; ps -e -o pid= | sort -n | head -1",
      ),
    ).toMatch(/^1\n[1-9]\n/);
    expect(await sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'openshell-[i]nit'")).toBe("0\n");
  });

  it("has a minimal /dev with a private /dev/pts and /dev/shm", async () => {
    expect(await sh("ls /dev 2>/dev/null | tr '\\n' ' '")).toBe(
      "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ",
    );
    expect(
      await sh(
        "echo a > /dev/null; head -c 4 /dev/zero | od -An -tx1; head -c 3 /dev/urandom | wc -c; echo s > /dev/shm/s && cat /dev/shm/s",
      ),
    ).toBe(" 00 00 00 00\n3\ns\n");
  });

  it("names itself and has its own ipc and uts namespaces", async () => {
    expect(await sh("hostname; cat /proc/sysvipc/shm | wc -l; readlink /proc/self/ns/net")).toMatch(
      /^sandbox\n1\nnet:/,
    );
    expect(await sh("cat /proc/self/cgroup | grep -v ':/$' | wc -l")).toBe("0\n");
  });

  it("binds single files, makes their parents, and skips what is optional and missing", async () => {
    expect(await sh("cat /opt/deep/file; ls /opt")).toBe(
      "cat: /opt/deep/file: Permission denied\nls: cannot open directory '/opt': Permission denied\n",
    );
    // The base rules of Landlock do not list /opt; the mount itself is there.
    expect(await sh("grep -c ' /opt/deep/file ' /proc/mounts; grep -c missing /proc/mounts")).toBe("1\n0\n");
  });
});

describe("volumes", () => {
  it("show the caller's files as the agent's and what the agent writes as the caller's", async () => {
    const { uid, gid } = sandbox.plan.identity;
    expect(await sh("stat -c '%u %g' /work/rw /work/rw/mine")).toBe(`${uid} ${gid}\n${uid} ${gid}\n`);
    const mounted = await openSandbox({
      extraSteps: [
        {
          kind: "volume",
          source: join(folder, "rw"),
          target: "/home/agent/v",
          readOnly: false,
          idmap: runsAsRoot ? { hostUid: OWNER, hostGid: OWNER } : undefined,
        },
      ],
    });
    const result = await mounted.run([
      "sh",
      "-c",
      "cd v && cat mine && echo new > new && mkdir d && ln -s mine l && stat -c %U new",
    ]);
    await mounted[Symbol.asyncDispose]();
    expect(result).toMatchObject({ stdout: "rwagent\n", stderr: "" });
    for (const name of ["new", "d"]) expect(statSync(join(folder, "rw", name)).uid).toBe(OWNER);
    expect(readFileSync(join(folder, "rw", "new"), "utf8")).toBe("new\n");
  });

  it("read-only ones refuse writes in the mount itself", async () => {
    expect(await sh("cut -d' ' -f2,4 /proc/mounts | cut -d, -f1 | grep '^/work/'")).toBe("/work/rw rw\n/work/ro ro\n");
  });

  const launchWith = async (source: string, target = "/work/x"): Promise<unknown> => {
    using test = testPlan({ extraSteps: [{ kind: "volume", source, target, readOnly: false, idmap: undefined }] });
    try {
      const { pid } = await launchSandbox(test.plan, { initPath: join(nativeParts(), "openshell-init") });
      process.kill(pid, "SIGKILL");
      return undefined;
    } catch (error) {
      return error;
    }
  };

  it("are not opened through a symbolic link, in any component", async () => {
    symlinkSync(join(folder, "rw"), join(folder, "link"));
    for (const path of [join(folder, "link"), join(folder, "link", "d")]) {
      expect(await launchWith(path)).toMatchObject({
        code: "sandbox_launch_failed",
        message: expect.stringMatching(/volume-open .*ELOOP/),
        next: expect.stringContaining("no symbolic link"),
      });
    }
  });

  it("that do not exist name the path", async () => {
    expect(await launchWith(join(folder, "nowhere"))).toMatchObject({ message: expect.stringContaining("nowhere") });
  });

  it("are not mounted through a link that the agent planted in another one", async () => {
    symlinkSync("/etc", join(folder, "rw", "trap"));
    using test = testPlan({
      extraSteps: [
        { kind: "volume", source: join(folder, "rw"), target: "/v", readOnly: false, idmap: undefined },
        { kind: "file", target: "/v/trap/passwd", mode: 0o644, content: Buffer.from("owned") },
      ],
    });
    const launched = launchSandbox(test.plan, { initPath: join(nativeParts(), "openshell-init") });
    await expect(launched).rejects.toMatchObject({ cause: { step: "file" } });
  });
});

import { execFileSync } from "node:child_process";
import { existsSync, lstatSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import type { Boundary } from "@openshell/boundary";
import type { StartedSandbox } from "@openshell/drivers/driver.ts";
import { MASKED_PROC } from "@openshell/drivers/local/root-view.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { callerFolder, confine, type DriverBench, openBench, runInside, shell } from "../../support/local-driver.ts";
import { expectPerMode, inMode } from "../../support/modes.ts";

const OK = { kind: "exited", code: 0 };

/** One sandbox with a repository, a read-only folder and a single file mounted. */
describe("what the agent sees", () => {
  let bench: DriverBench;
  let started: StartedSandbox;
  let boundary: Boundary;
  let repository: string;
  const sh = (script: string) => shell(boundary, started, script);

  beforeAll(async () => {
    bench = await openBench();
    repository = callerFolder(bench, "repo");
    execFileSync("git", ["init", "--quiet", repository]);
    writeFileSync(join(repository, ".bashrc"), "owner's\n");
    writeFileSync(join(repository, "file"), "content\n");
    const data = callerFolder(bench, "data");
    writeFileSync(join(data, "d"), "data\n");
    const intent = bench.intent({
      resources: { cpuMillis: undefined, memoryBytes: 512n << 20n, pids: 200 },
      volumes: [
        { source: repository, target: "/sandbox/src/repo", access: "rw" },
        { source: data, target: "/data", access: "ro" },
        { source: join(data, "d"), target: "/one/file", access: "rw" },
      ],
    });
    started = await bench.driver.create(intent);
    boundary = await confine(started, intent);
  });
  afterAll(async () => {
    await boundary?.[Symbol.asyncDispose]();
    await bench?.[Symbol.asyncDispose]();
  });

  it("is an ordinary user called sandbox, never root", async () => {
    const { stdout } = await sh("id -u; id -un; id -g; pwd; echo $HOME; hostname");
    const uid = inMode({ root: "1000", user: String(process.getuid!()) });
    const gid = inMode({ root: "1000", user: String(process.getgid!()) });
    expect(stdout).toBe(`${uid}\nsandbox\n${gid}\n/sandbox\n/sandbox\nprobe\n`);
  });

  it.each([
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/ssh",
    "/etc/sudoers",
    "/etc/machine-id",
    "/etc/environment",
    "/etc/ssl/private",
    "/root",
    "/var/log/dpkg.log",
    "/var/run/docker.sock",
    "/run/systemd",
    "/run/dbus",
    "/boot",
    "/sys/kernel",
    "/opt",
    "/work",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/kvm",
    "/dev/net/tun",
  ])("does not see %s", async (path) => {
    expect((await sh(`test -e ${path} || test -L ${path}`)).exit).toEqual({ kind: "exited", code: 1 });
  });

  it("does not see the gateway's folders under any name", async () => {
    const { stdout } = await sh(
      `ls -d ${bench.folder} 2>&1; find / -xdev -name 'control.sock' -o -name 'launch.json' 2>/dev/null`,
    );
    expect(stdout).not.toContain("launch.json");
    expect(stdout).not.toContain("control.sock");
    expect(stdout).toMatch(/No such file|cannot access/);
  });

  it("does not see init, nor any process of the machine", async () => {
    const { stdout } = await sh("ls /proc | grep -E '^[0-9]+$'; echo --; ls /proc/1 2>&1; cat /proc/1/environ 2>&1");
    const [pids, rest] = stdout.split("--");
    expect(pids!.trim().split("\n").map(Number)).not.toContain(1);
    expect(pids!.trim().split("\n").length).toBeLessThan(6);
    expect(rest).toMatch(/No such file|cannot access/);
  });

  it("cannot read what /proc says of the machine's keys, memory and messages", async () => {
    for (const path of MASKED_PROC.filter((file) => existsSync(file))) {
      const { stdout, exit } = await sh(`cat ${path}`);
      expect([path, stdout, exit]).toEqual([path, "", { kind: "exited", code: 1 }]);
    }
  });

  it.each(["/usr/x", "/etc/x", "/x", "/bin/x", "/data/x", "/var/x", "/run/x", "/proc/sys/kernel/x", "/dev/x"])(
    "cannot create %s",
    async (path) => {
      const result = await sh(`touch ${path}`);
      expect(result.exit).toEqual({ kind: "exited", code: 1 });
    },
  );

  it.each(["/sandbox/x", "/tmp/x", "/dev/shm/x", "/sandbox/src/repo/x", "/var/tmp/x"])(
    "can create %s",
    async (path) => {
      expect(await sh(`echo y > ${path} && cat ${path} && rm ${path}`)).toEqual({
        stdout: "y\n",
        stderr: "",
        exit: OK,
      });
    },
  );

  it("reads a read-only volume and a single mounted file", async () => {
    expect((await sh("cat /data/d /one/file")).stdout).toBe("data\ndata\n");
    expect((await sh("echo more >> /one/file")).exit).toEqual(OK);
    expect(readFileSync(join(bench.folder, "data", "d"), "utf8")).toBe("data\nmore\n");
  });

  it("sees the caller's files as its own, and the caller owns what it writes", async () => {
    expect((await sh("stat -c %U /sandbox/src/repo/file")).stdout).toBe("sandbox\n");
    expect((await sh("cd /sandbox/src/repo && echo made > made && mkdir folder && ln -s made link")).exit).toEqual(OK);
    for (const name of ["made", "folder", "link"]) {
      const { uid, gid } = lstatSync(join(repository, name));
      expect([name, uid, gid]).toEqual([name, process.getuid!(), process.getgid!()]);
    }
  });

  it("keeps its home under the sandbox's own id", async () => {
    expect((await sh("echo mine > ~/mine")).exit).toEqual(OK);
    const { uid } = lstatSync(join(bench.options.paths.state, "sandboxes", started.sandboxId, "home", "mine"));
    expectPerMode(uid, {
      root: (actual) => expect(actual).toBeGreaterThanOrEqual(0x7000_0000),
      user: process.getuid!(),
    });
  });

  it("cannot plant what the owner would run", async () => {
    for (const script of [
      "echo x > .git/hooks/post-checkout",
      "rm .git/hooks/*",
      "git config core.hooksPath /tmp",
      "echo x >> .git/config",
      "mv .git elsewhere",
      "rm -rf .git/hooks",
      "mv .git/hooks .git/other",
      "echo x >> .bashrc",
      "mv .bashrc b",
      "rm -f .bashrc",
    ]) {
      const { exit } = await sh(`cd /sandbox/src/repo && ${script}`);
      expect([script, exit.kind === "exited" && exit.code !== 0]).toEqual([script, true]);
    }
    expect(readFileSync(join(repository, ".bashrc"), "utf8")).toBe("owner's\n");
    expect(existsSync(join(repository, ".git", "hooks", "post-checkout"))).toBe(false);
  });

  it("works with git in the repository", async () => {
    const result = await sh(
      "cd /sandbox/src/repo && git add -A && git -c user.name=a -c user.email=a@example.com commit -qm first && git log --format=%s && git status --short",
    );
    expect(result).toEqual({ stdout: "first\n", stderr: "", exit: OK });
    expect(
      execFileSync("git", ["-C", repository, "-c", "safe.directory=*", "fsck"], { encoding: "utf8" }),
    ).toBeDefined();
  });

  it("never makes a set-id program in the caller's folder", async () => {
    const { stdout } = await sh(
      "cp /bin/true /sandbox/src/repo/t && chmod 4755 /sandbox/src/repo/t; chmod g+s /sandbox/src/repo/t; stat -c %a /sandbox/src/repo/t",
    );
    expect(stdout).toBe("755\n");
    expect(lstatSync(join(repository, "t")).mode & 0o6000).toBe(0);
  });

  it("finds the merged roots where programs look that read no variable", async () => {
    const { stdout } = await sh(
      "for f in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/java/cacerts; do test -e $f && cmp $f /etc/openshell-tls/$(case $f in *crt) echo ca-bundle.pem;; *) echo cacerts.jks;; esac) && echo same; done",
    );
    const present = ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/java/cacerts"].filter((path) =>
      existsSync(path),
    );
    expect(stdout).toBe("same\n".repeat(present.length));
  });

  it("trusts the merged bundle and has the inspection CA beside it", async () => {
    const { stdout } = await sh(
      "grep -c BEGIN $SSL_CERT_FILE; grep -c BEGIN /run/openshell-supervisor-ca/openshell-ca.pem",
    );
    const [bundle, own] = stdout.trim().split("\n").map(Number);
    expect(own).toBe(1);
    expect(bundle).toBeGreaterThanOrEqual(1);
  });
});

describe("the top of the root", () => {
  it("holds the system's programs and nothing else", async () => {
    await using bench = await openBench();
    const intent = bench.intent();
    const started = await bench.driver.create(intent);
    await using boundary = await confine(started, intent, { readOnly: ["/"] });
    const { stdout } = await shell(boundary, started, "ls -A /");
    const allowed = "bin dev etc gnu home lib lib32 lib64 libx32 nix proc run sandbox sbin tmp usr var".split(" ");
    const top = stdout.trim().split("\n");
    expect(top).toEqual(expect.arrayContaining(["bin", "etc", "sandbox", "usr"]));
    expect(top.filter((name) => !allowed.includes(name))).toEqual([]);
    const empty = await shell(boundary, started, "ls -A /home /run /var/log /var/lib /tmp");
    expect(empty.stdout).toBe("/home:\n\n/run:\nopenshell-supervisor-ca\n\n/tmp:\n\n/var/lib:\n\n/var/log:\n");
  });
});

describe("sockets of the host", () => {
  it("are covered when a mounted folder holds one", async () => {
    await using bench = await openBench();
    const folder = callerFolder(bench, "with-socket");
    const path = join(folder, "service.sock");
    let connections = 0;
    const server = createServer((socket) => {
      connections++;
      socket.end("reached\n");
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    try {
      const intent = bench.intent({ volumes: [{ source: folder, target: "/v", access: "rw-all" }] });
      const started = await bench.driver.create(intent);
      await using boundary = await confine(started, intent);
      const { stdout, exit } = await runInside(boundary, started, [
        "/usr/bin/perl",
        "-MIO::Socket::UNIX",
        "-e",
        "my $s = IO::Socket::UNIX->new('/v/service.sock') or exit 7; print <$s>",
      ]);
      expect({ stdout, exit }).toEqual({ stdout: "", exit: { kind: "exited", code: 7 } });
      expect(connections).toBe(0);
    } finally {
      server.close();
    }
  });
});

describe("Landlock", () => {
  it("closes what the policy does not list, even where ids would allow it", async () => {
    await using bench = await openBench();
    const intent = bench.intent();
    const started = await bench.driver.create(intent);
    await using boundary = await confine(started, intent, { includeWorkdir: false });
    const { exit, stderr } = await runInside(boundary, started, ["/bin/sh", "-c", "cd /tmp && ls /sandbox"]);
    expect(exit).not.toEqual(OK);
    expect(stderr).toMatch(/Permission denied/);
    expect((await runInside(boundary, started, ["/bin/sh", "-c", "echo t > /tmp/t && cat /tmp/t"])).stdout).toBe("t\n");
  });
});

describe("a volume through a link that was put there after the check", () => {
  it("is refused by the launcher", async () => {
    await using bench = await openBench();
    const folder = callerFolder(bench, "real");
    mkdirSync(join(folder, "sub"));
    const intent = bench.intent({ volumes: [{ source: join(folder, "sub"), target: "/v", access: "ro" }] });
    await bench.driver.validate(intent);
    execFileSync("mv", [join(folder, "sub"), join(folder, "moved")]);
    execFileSync("ln", ["-s", "/etc", join(folder, "sub")]);
    await expect(bench.driver.create(intent)).rejects.toThrow(/symbolic link/);
    expect((await bench.driver.inspect(intent.sandboxId))?.running).toBeUndefined();
  });
});

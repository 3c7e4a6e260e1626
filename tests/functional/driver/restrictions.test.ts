import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { Boundary } from "@openshell/boundary";
import { DENIED_SYSCALLS } from "@openshell/boundary/local/compile/seccomp.ts";
import { type SYSCALLS, syscallNumber } from "@openshell/boundary/local/compile/syscalls.ts";
import type { StartedSandbox } from "@openshell/drivers/driver.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { callerFolder, confine, type DriverBench, openBench, runInside, shell } from "../../support/local-driver.ts";

const OK = { kind: "exited", code: 0 };

function present(program: string): boolean {
  return spawnSync("sh", ["-c", `PATH=/usr/local/bin:/usr/bin:/bin command -v ${program}`]).status === 0;
}

/** Makes one system call with the numbers given and prints errno (0 for success). */
const CALLER = `
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(int argc, char **argv) {
  long a[7] = {0};
  for (int i = 1; i < argc && i < 8; i++) a[i - 1] = strtoul(argv[i], 0, 0);
  errno = 0;
  long r = syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
  printf("%d\\n", r < 0 ? errno : 0);
  return 0;
}
`;

describe("restrictions in force", () => {
  let bench: DriverBench;
  let started: StartedSandbox;
  let boundary: Boundary;
  const sh = (script: string) => shell(boundary, started, script);

  beforeAll(async () => {
    bench = await openBench();
    const tools = callerFolder(bench, "tools");
    const build = mkdtempSync(join(tmpdir(), "caller-"));
    writeFileSync(join(build, "call.c"), CALLER);
    execFileSync("cc", ["-static", "-O1", "-o", join(build, "call"), join(build, "call.c")]);
    copyFileSync(join(build, "call"), join(tools, "call"));
    chmodSync(join(tools, "call"), 0o755);
    rmSync(build, { recursive: true });
    const node = dirname(process.execPath);
    const intent = bench.intent({
      volumes: [
        { source: tools, target: "/tools", access: "ro" },
        { source: node, target: "/node", access: "ro" },
      ],
    });
    started = await bench.driver.create(intent);
    boundary = await confine(started, intent);
  });
  afterAll(async () => {
    await boundary?.[Symbol.asyncDispose]();
    await bench?.[Symbol.asyncDispose]();
  });

  async function errno(...args: readonly (number | string)[]): Promise<number> {
    const { stdout } = await runInside(boundary, started, ["/tools/call", ...args.map(String)]);
    return Number(stdout);
  }
  const number = (name: keyof typeof SYSCALLS): number =>
    syscallNumber(name, process.arch === "arm64" ? "arm64" : "x64")!;

  it("are all there in /proc: no privilege, no gain, a filter", async () => {
    const { stdout } = await sh("grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status; umask; ulimit -c");
    expect(stdout).toMatch(/^CapInh:\t0+\nCapPrm:\t0+\nCapEff:\t0+\nCapBnd:\t0+\nCapAmb:\t0+\n/m);
    expect(stdout).toMatch(/NoNewPrivs:\t1\nSeccomp:\t2\n0022\n0\n$/);
  });

  it("deny every listed call", async () => {
    const arch = process.arch === "arm64" ? "arm64" : "x64";
    const calls = DENIED_SYSCALLS.flatMap((name) => syscallNumber(name, arch) ?? []);
    const { stdout } = await sh(`for n in ${calls.join(" ")}; do /tools/call $n; done`);
    expect(stdout.trim().split("\n").map(Number)).toEqual(calls.map(() => 1));
  });

  it("deny sockets that leave the sandbox by other ways", async () => {
    const socket = number("socket");
    expect(await errno(socket, 2, 1, 0)).toBe(0);
    expect(await errno(socket, 10, 2, 0)).toBe(0);
    expect(await errno(socket, 1, 1, 0)).toBe(0);
    expect(await errno(socket, 16, 3, 0)).toBe(0);
    expect(await errno(socket, 2, 3, 1)).toBe(1);
    expect(await errno(socket, 17, 3, 0)).toBe(97);
    expect(await errno(socket, 40, 1, 0)).toBe(97);
    expect(await errno(socket, 38, 5, 0)).toBe(97);
    expect(await errno(socket, 16, 3, 12)).toBe(93);
    expect(await errno(socket, 2, 1, 132)).toBe(93);
  });

  it("deny new namespaces by clone, clone3 and unshare", async () => {
    expect(await errno(number("clone"), "0x10000011", 0)).toBe(1);
    expect(await errno(number("clone3"), 0, 0)).toBe(38);
    expect((await sh("unshare -U true")).exit).not.toEqual(OK);
  });

  it("deny pushing characters into a terminal", async () => {
    expect(await errno(number("ioctl"), 0, "0x5412", 0)).toBe(1);
    expect(await errno(number("ioctl"), 0, "0x100005412", 0)).toBe(1);
  });

  it("deny signals and limits beyond the sandbox's own processes", async () => {
    expect(await errno(number("prlimit64"), 1, 7, 0, 0)).toBe(1);
    const kill = process.arch === "arm64" ? 129 : 62;
    expect([1, 3]).toContain(await errno(kill, 1, 9));
    expect(await sh("echo alive")).toEqual({ stdout: "alive\n", stderr: "", exit: OK });
  });

  it("keep a crash from reaching the host's core dump program", async () => {
    const { stdout } = await sh(
      "grep 'Max core' /proc/self/limits; perl -e 'kill SEGV => $$'; ls -A /tmp | grep -c core",
    );
    expect(stdout).toMatch(/^Max core file size +1 +1 +bytes/);
    expect(stdout).toMatch(/\n0\n$/);
  });

  it("end a 32-bit program", async () => {
    if (process.arch !== "x64") return;
    // int 0x80 with exit(0): another machine's call table.
    const code = "b801000000bb00000000cd80";
    const elf = Buffer.alloc(132);
    elf.write("7f454c46020101", 0, "hex");
    elf.writeUInt16LE(2, 16);
    elf.writeUInt16LE(62, 18);
    elf.writeUInt32LE(1, 20);
    elf.writeBigUInt64LE(0x400078n, 24);
    elf.writeBigUInt64LE(64n, 32);
    elf.writeUInt16LE(64, 52);
    elf.writeUInt16LE(56, 54);
    elf.writeUInt16LE(1, 56);
    elf.writeUInt32LE(1, 64);
    elf.writeUInt32LE(5, 68);
    elf.writeBigUInt64LE(0x400000n, 80);
    elf.writeBigUInt64LE(0x400000n, 88);
    elf.writeBigUInt64LE(132n, 96);
    elf.writeBigUInt64LE(132n, 104);
    elf.writeBigUInt64LE(4096n, 112);
    elf.write(code, 120, "hex");
    const bytes = [...elf].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
    expect((await sh(`printf '${bytes}' > /tmp/old && chmod 755 /tmp/old`)).exit).toEqual(OK);
    const { exit } = await runInside(boundary, started, ["/tmp/old"]);
    expect(exit).toEqual({ kind: "signaled", signal: 31 });
  });

  it("leave no way to an abstract socket of a foreign domain or to the machine's network", async () => {
    const { stdout } = await sh(
      "cat /proc/net/unix | grep -c @ ; cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '",
    );
    expect(stdout).toBe("0\nlo\n");
  });

  describe("leave tools working:", () => {
    it("Node with workers, child processes, interfaces and file watching", async () => {
      const script = `
        const { Worker } = require("node:worker_threads"), fs = require("node:fs"), os = require("node:os");
        const worker = new Worker("require('node:worker_threads').parentPort.postMessage(6*7)", { eval: true });
        worker.once("message", (answer) => {
          const child = require("node:child_process").execFileSync("echo", ["child"]).toString().trim();
          fs.watch("/tmp", () => {}).close();
          require("node:net").createServer((s) => s.end("own server")).listen(8080, "127.0.0.1", function () {
            require("node:net").connect(8080, "127.0.0.1").on("data", (data) => {
              console.log(answer, child, Object.keys(os.networkInterfaces()).join(), String(data));
              process.exit(0);
            });
          });
        });`;
      const { stdout, stderr, exit } = await runInside(boundary, started, ["/node/node", "-e", script]);
      expect({ stdout, stderr, exit }).toEqual({ stdout: "42 child lo own server\n", stderr: "", exit: OK });
    });

    it.skipIf(!present("python3"))("Python with threads, processes, interfaces and TLS roots", async () => {
      const script = `
import socket, ssl, threading, multiprocessing, subprocess, tempfile
def main():
    t = threading.Thread(target=lambda: None); t.start(); t.join()
    with multiprocessing.Pool(2) as pool: print(sum(pool.map(abs, [-1, -2, -3])))
    print(socket.if_nameindex()[0][1], subprocess.check_output(["echo", "x"]).decode().strip())
    print(ssl.create_default_context().cert_store_stats()["x509_ca"] > 0)
main()
`;
      const { stdout, stderr, exit } = await runInside(boundary, started, ["/usr/bin/python3", "-c", script]);
      expect({ stdout, stderr, exit }).toEqual({ stdout: "6\nlo x\nTrue\n", stderr: "", exit: OK });
    });

    it.skipIf(!present("gcc"))("gcc", async () => {
      const script = `cd /tmp && printf '#include <stdio.h>\\nint main(){puts("built");}' > a.c && gcc -o a a.c && ./a`;
      expect(await sh(script)).toEqual({ stdout: "built\n", stderr: "", exit: OK });
    });

    it.skipIf(!present("git"))("git", async () => {
      const script = `cd ~ && git init -q r && cd r && echo a > a && git add a && git -c user.name=a -c user.email=a@example.com commit -qm one && git clone -q . ../s && cat ../s/a`;
      expect(await sh(script)).toEqual({ stdout: "a\n", stderr: "", exit: OK });
    });

    it.skipIf(!present("tmux"))("tmux", async () => {
      const script = `export TERM=xterm TMUX_TMPDIR=/tmp; tmux -f /dev/null new-session -d -s t 'echo in-tmux > /tmp/tm; sleep 5' && for i in 1 2 3 4 5 6 7 8 9 10; do test -s /tmp/tm && break; sleep 0.2; done; cat /tmp/tm; tmux kill-server`;
      const { stdout, exit } = await sh(script);
      expect({ stdout, exit }).toEqual({ stdout: "in-tmux\n", exit: OK });
    });

    it.skipIf(!present("script"))("terminals made by programs themselves", async () => {
      const { stdout, exit } = await sh(
        "script -qec 'test -t 0 && test -t 1 && echo a terminal' /dev/null < /dev/null",
      );
      expect(stdout).toContain("a terminal");
      expect(exit).toEqual(OK);
    });

    it("shells, pipes, job control, archives", async () => {
      const script = `set -e; cd /tmp; mkdir -p d/e; echo x > d/e/f; tar cf d.tar d; rm -r d; tar xf d.tar; cat d/e/f; ls -l d | grep -c e; (sleep 0.1 & wait); printf 'b\\na\\n' | sort | head -1; test -r /dev/urandom; head -c 4 /dev/urandom | wc -c; echo > /dev/null`;
      expect(await sh(script)).toEqual({ stdout: "x\n1\na\n4\n", stderr: "", exit: OK });
    });

    it.skipIf(!present("java"))("Java with the sandbox's trust store", async () => {
      const source = `import javax.net.ssl.*; import java.security.KeyStore;
class T { public static void main(String[] a) throws Exception {
  var f = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm()); f.init((KeyStore) null);
  long own = java.util.Arrays.stream(((X509TrustManager) f.getTrustManagers()[0]).getAcceptedIssuers()).filter(c -> c.getSubjectX500Principal().getName().contains("OpenShell Sandbox CA")).count();
  System.out.println(own); } }`;
      const { stdout, exit } = await sh(`cat > /tmp/T.java <<'JAVA'\n${source}\nJAVA\njava /tmp/T.java`);
      expect({ stdout, exit }).toEqual({ stdout: "1\n", exit: OK });
    });

    it.skipIf(!present("curl"))("curl, as far as a denied network goes, with its reason", async () => {
      const { exit } = await sh("curl --noproxy '*' -s --max-time 2 http://127.0.0.1:9/");
      expect(exit).toEqual({ kind: "exited", code: 7 });
    });
  });
});

import { readFileSync, readlinkSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxPhase } from "@openshell/api";
import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, expectOutcomes, openLab } from "../support/attack.ts";
import { allowedMs } from "../support/slowness.ts";

/** Towards other processes: init and its helpers, the owner's, neighbours' in the same host; and descriptors of them. */

/** Prints its own descriptors and those of every process it can see. */
const DESCRIPTORS = `
for p in /proc/[0-9]*; do
  for f in $p/fd/*; do printf '%s %s %s\\n' "$(tr '\\0' ' ' < $p/cmdline | cut -c1-40 | tr ' ' '_')" "\${f##*/}" "$(readlink $f)"; done
done 2>/dev/null`;

const lab = openLab({
  c: { others: readFileSync(join(import.meta.dirname, "programs/others.c"), "utf8") },
  box: () => ({ command: ["sh", "-c", "echo $$ > /tmp/main; exec sleep 86400"] }),
});

/** The launcher's and init's processes of a sandbox, as the machine sees them: the oldest of its pid namespace first. */
function processesOf(box: TestSandbox): readonly number[] {
  const title = box.id.slice(0, 8);
  return lab.gateway.user.processes().filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "latin1").includes(title);
    } catch {
      return false;
    }
  });
}

attack(
  "see and open init, its helpers and the machine's processes in /proc",
  "the agent sees its own processes only; /proc/1 is not there",
  { root: "ENOENT or ESRCH", user: "ENOENT or ESRCH" },
  async ({ box, witness }, expected) => {
    const { stdout } = await box.sh("ls -d /proc/[0-9]* | sed 's,/proc/,,'");
    const pids = stdout.trim().split("\n").map(Number);
    expect(pids).not.toContain(1);
    const commands = (await box.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout;
    expect(commands).not.toMatch(/openshell|node|vitest|OWNER/);
    const outcome = await box.sh("for f in mem environ root cwd fd exe maps; do ls /proc/1/$f 2>&1; done");
    expect(
      outcome.stdout
        .trim()
        .split("\n")
        .every((line) => /No such file/.test(line)),
    ).toBe(true);
    expect(expected).toContain("ENOENT");
    expect(readFileSync(`/proc/${witness.victim.pid}/environ`, "utf8")).toContain(witness.secret);
  },
);

attack(
  "ptrace, process_vm_readv, pidfd_getfd, /proc/PID/mem and limits of init and its helpers",
  "init, zygote and identifier go on; a later command runs as before",
  {
    root: "EPERM or EACCES or ESRCH or ENOENT or EBADF or EINVAL",
    user: "EPERM or EACCES or ESRCH or ENOENT or EBADF or EINVAL",
  },
  async ({ box }, expected) => {
    const result = await box.exec(["/attack/others", "1", "2", "3"]);
    expectOutcomes(result, expected, 3 * 22);
    expect((await box.sh("echo alive")).stdout).toBe("alive\n");
  },
);

attack(
  "kill init, its helpers and everything else (kill -1)",
  "init survives; the gateway runs the next command",
  { root: "alive", user: "alive" },
  async ({ create }, expected) => {
    await using own = await create({ command: ["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"] });
    await own.sh("for s in TERM STOP KILL SEGV USR1; do for p in 1 2 3; do kill -$s $p; done; done");
    expect((await own.sh(`echo ${expected}`)).stdout).toBe("alive\n");
    // Everything that the agent may signal, itself included: the exec ends without a status of its own or with one.
    await own.sh("kill -KILL -1").catch(() => {});
    const after = await own.sh("echo alive").catch((error: Error) => error);
    // The main process is gone as well: the sandbox has ended, or it still takes commands. It never hangs.
    if (after instanceof Error) await own.phase(SandboxPhase.COMPLETED).catch(() => {});
    else expect(after.stdout).toBe("alive\n");
  },
);

attack(
  "freeze the sandbox's helpers (SIGSTOP to the zygote)",
  "other sandboxes of the host answer at once; the sandbox can be deleted",
  { root: "deleted", user: "deleted" },
  async ({ create, box }) => {
    const own = await create();
    // Stops the shell that says so as well: this command does not come back, and new ones may not either.
    await own.sh("kill -STOP 1 2 3; kill -STOP -1; echo", { timeoutMs: 1_500 }).catch(() => {});
    const startedAt = performance.now();
    expect((await box.sh("echo quiet")).stdout).toBe("quiet\n");
    expect(performance.now() - startedAt).toBeLessThan(allowedMs(5_000));
    await own.delete();
  },
);

attack(
  "descriptors inherited by the main process and by commands",
  "0, 1 and 2 and what the program opened itself; no socket, no folder of the machine",
  { root: "pipes only", user: "pipes only" },
  async ({ box }) => {
    const { stdout } = await box.sh(DESCRIPTORS);
    const lines = stdout.trim().split("\n");
    const main = lines.filter((line) => line.startsWith("sleep_86400"));
    expect(main).toHaveLength(3);
    for (const line of main) expect(line).toMatch(/ [012] (pipe:\[\d+\]|\/dev\/null)$/);
    for (const line of lines) expect(line).not.toMatch(/socket:|anon_inode|\(deleted\)|memfd/);
    const terminal = await box.exec(["/bin/sh", "-c", "ls -l /proc/self/fd | grep -c pts/; ls /proc/self/fd"], {
      tty: true,
    });
    expect(terminal.stdout.replaceAll("\r", "").trim().split(/\s+/)).toEqual(["2", "0", "1", "2", "3"]);
  },
);

attack(
  "secrets in the environment, arguments and maps of the agent's own processes",
  "no nonce, token, host path of the gateway or variable of the owner is inside",
  { root: "nothing", user: "nothing" },
  async ({ box, gateway, witness }) => {
    const { stdout } = await box.sh("cat /proc/self/environ /proc/*/environ /proc/*/cmdline /proc/self/maps; set");
    expect(stdout).not.toContain(witness.secret);
    expect(stdout).not.toContain(gateway.user.home.folder);
    expect(stdout).not.toMatch(/host\.sock|user\.sock|control\.sock|OPENSHELL_(?!SANDBOX)/);
  },
);

attack(
  "core dump of an agent process (core_pattern runs on the machine)",
  "no core file anywhere; the hard limit is 0",
  { root: "0", user: "0" },
  async ({ box }, expected) => {
    const script =
      "ulimit -Hc; ulimit -c unlimited 2>/dev/null; cd /tmp; sh -c 'kill -SEGV $$'; ls /tmp/core* 2>/dev/null";
    expect((await box.sh(script)).stdout.trim()).toBe(expected);
  },
);

attack(
  "abstract unix sockets of the machine",
  "the owner's listener gets no connection",
  { root: "ECONNREFUSED", user: "ECONNREFUSED" },
  async ({ box }, expected) => {
    const name = `\0openshell-test-${process.pid}`;
    let connections = 0;
    const server = net.createServer(() => {
      connections += 1;
    });
    await new Promise<void>((done) => server.listen(name, done));
    const script = `import socket,sys,errno
for n in sys.argv[1:]:
    s=socket.socket(socket.AF_UNIX)
    try: s.connect("\\0"+n); print("connected")
    except OSError as e: print(errno.errorcode[e.errno])`;
    const names = [name.slice(1), "/tmp/.X11-unix/X0", "/run/systemd/private"];
    const { stdout } = await box.exec(["python3", "-c", script, ...names]);
    expect(stdout.trim().split("\n")).toEqual(names.map(() => expected));
    await sleep(50);
    expect(connections).toBe(0);
    await new Promise((done) => server.close(done));
  },
);

attack(
  "docker.sock, X11, D-Bus and the gateway's own sockets by path",
  "none of them is there; the gateway's sockets get no connection",
  { root: "absent", user: "absent" },
  async ({ box, gateway }) => {
    const { folders } = gateway;
    const paths = [
      ...["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"],
      ...["/tmp/.X11-unix/X0", "/run/dbus/system_bus_socket", "/run/user/0/bus", "/run/systemd/private"],
      ...[folders.userSocket, folders.hostSocket, folders.runtime, folders.state, gateway.user.home.folder],
    ];
    const { stdout } = await box.sh(`for p in ${paths.join(" ")}; do test -e $p && echo "$p is there"; done; echo end`);
    expect(stdout).toBe("end\n");
    expect((await box.sh("find / -xdev -type s 2>/dev/null")).stdout).toBe("");
  },
);

attack(
  "shared memory, semaphores, message queues and keyrings of the machine and of neighbours",
  "a neighbour's segment cannot be found, and the other way round",
  { root: "absent", user: "absent" },
  async ({ box, create }) => {
    await using neighbour = await create();
    const make =
      "ipcmk -M 4096 -p 0666 >/dev/null; ipcmk -Q -p 0666 >/dev/null; ipcmk -S 1 -p 0666 >/dev/null; echo x > /dev/shm/shared; ipcs | grep -c 0x";
    expect((await neighbour.sh(make)).stdout.trim()).toBe("3");
    expect((await box.sh("ipcs | grep -c 0x; ls -A /dev/shm; cat /proc/keys 2>/dev/null")).stdout.trim()).toBe("0");
  },
);

attack(
  "/tmp, home and processes of a neighbour",
  "the neighbour's files and processes are not visible",
  { root: "absent", user: "absent" },
  async ({ box, create }) => {
    await using neighbour = await create();
    await neighbour.sh("echo neighbour-file > /tmp/n; echo neighbour-file > ~/n; chmod 777 ~ /tmp/n ~/n");
    const { stdout } = await box.sh(
      "grep -rl neighbour-file /tmp /sandbox /dev/shm /var 2>/dev/null; ls /tmp/n ~/n 2>/dev/null; ps ax | grep -c '[s]leep 86400'",
    );
    expect(stdout.trim()).toBe("1");
  },
);

attack(
  "a fork bomb",
  "it ends at the sandbox's limit; the neighbour and the owner start programs all the while",
  { root: "at most 2048", user: "at most 2048" },
  async ({ box, create, net: internet }, expected) => {
    await using own = await create();
    const bomb = `import os,time
n=0
try:
    while n<6000:
        if os.fork()==0: time.sleep(4); os._exit(0)
        n+=1
except OSError as e: pass
print(n,flush=True)`;
    const running = own.exec(["python3", "-c", bomb], { timeoutMs: 60_000 });
    await sleep(1_000);
    expect((await box.sh("echo quiet")).stdout).toBe("quiet\n");
    expect((await internet.run(["true"])).exitCode).toBe(0);
    const count = Number((await running).stdout);
    expect(count).toBeGreaterThan(100);
    expect(count).toBeLessThanOrEqual(Number(expected.split(" ").at(-1)));
  },
  90_000,
);

attack(
  "kernel settings, sysrq and other writable files of /proc; /sys and control groups",
  "core_pattern, modprobe, ip_forward and all others keep their values",
  { root: "nothing", user: "nothing" },
  async ({ box }) => {
    const script = `
      for f in kernel/core_pattern kernel/modprobe kernel/hostname vm/drop_caches net/ipv4/ip_forward net/ipv4/ping_group_range net/ipv4/ip_unprivileged_port_start user/max_user_namespaces fs/binfmt_misc/register; do
        (echo x > /proc/sys/$f) 2>/dev/null && echo "wrote $f"; done
      for f in /proc/sysrq-trigger /proc/acpi/wakeup /proc/irq/default_smp_affinity /proc/self/timens_offsets /proc/self/setgroups /proc/kcore /proc/self/loginuid; do
        (echo x > $f) 2>/dev/null && echo "wrote $f"; done
      # Its mode is 0666, and the kernel asks for a capability when it is written.
      find /proc/sys -type f -writable ! -name ns_last_pid 2>/dev/null
      (echo 7 > /proc/sys/kernel/ns_last_pid) 2>/dev/null && echo "wrote ns_last_pid"
      ls /sys 2>/dev/null; ls -d /sys/fs/cgroup 2>/dev/null
      (head -c 16 /proc/kcore || head -c 16 /proc/kmsg || cat /proc/slabinfo) 2>/dev/null
      echo end`;
    expect((await box.sh(script)).stdout).toBe("end\n");
  },
);

attack(
  "read the gateway and its hosts as another user of the machine: memory, environment, descriptors, debugger",
  "both run on, no inspector opens, nothing of them can be read",
  { root: "denied to another uid", user: "denied to another uid" },
  async ({ gateway, net: internet }) => {
    // In user mode the test process itself is the user; root's processes of the run are the foreign ones to it.
    for (const pid of [gateway.pid, ...gateway.hosts()]) {
      const script = `for f in mem environ maps fd root cwd stack syscall auxv; do head -c 1 /proc/${pid}/$f >/dev/null 2>&1 && echo "read $f"; ls /proc/${pid}/$f/ >/dev/null 2>&1 && echo "listed $f"; done; kill -USR1 ${pid} 2>/dev/null && echo signalled; echo end`;
      const asOther = process.getuid?.() === 0 ? { uid: 65_534 } : {};
      const { stdout } = await internet.run(["sh", "-c", script], asOther);
      const rest = stdout.split("\n").filter((line) => line !== "" && line !== "end");
      // The same user may signal; that must not open the inspector.
      expect(rest.filter((line) => line !== "signalled")).toEqual([]);
      if (process.getuid?.() === 0) process.kill(pid, "SIGUSR1");
    }
    await sleep(300);
    const inspector = await new Promise<boolean>((done) => {
      const socket = net.connect(9229, "127.0.0.1");
      socket.on("connect", () => done(true));
      socket.on("error", () => done(false));
    });
    expect(inspector).toBe(false);
    expect(gateway.hosts().length).toBeGreaterThan(0);
    for (const pid of gateway.hosts()) {
      expect(readFileSync(`/proc/${pid}/limits`, "utf8")).toMatch(/Max core file size\s+0\s+0/);
    }
  },
);

attack(
  "what the gateway and its hosts are started with: arguments, environment",
  "no secret, and no variable that steers Node, TLS or proxies",
  { root: "clean", user: "clean" },
  async ({ gateway }) => {
    for (const pid of [gateway.pid, ...gateway.hosts()]) {
      const argv = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      expect(argv).toContain("--disable-sigusr1");
      expect(argv.join(" ")).not.toMatch(/[0-9a-f]{64}|BEGIN/);
      let environment = "";
      try {
        environment = readFileSync(`/proc/${pid}/environ`, "utf8");
      } catch {
        // Not dumpable: even its own user may not look.
      }
      expect(environment).not.toMatch(/(^|\0)(NODE_|SSL_|LD_|[A-Za-z]+_(PROXY|proxy)=)/);
      expect(environment).not.toMatch(/[0-9a-f]{64}/);
    }
    for (const pid of processesOf(lab.box)) expect(readlinkSync(`/proc/${pid}/exe`)).toContain("openshell-init");
  },
);

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { systemCode } from "@openshell/base";
import type { ExitStatus } from "@openshell/boundary";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { collect, command, openSandbox, outcome, type TestSandbox, testEnv } from "../../support/boundary.ts";

let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await openSandbox();
});
afterAll(() => sandbox?.[Symbol.asyncDispose]());

const childrenOf = (pid: number): readonly number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim().split(" ").map(Number);

describe("spawn with pipes", () => {
  it("gives output, error output and the exit code", async () => {
    const result = await sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 7"]);
    expect(result).toEqual({ status: { kind: "exited", code: 7 }, stdout: "out\n", stderr: "err\n" });
  });

  it("passes argv and environment byte for byte", async () => {
    const value = `a b'"\\\n\t$x ü€🙂 ${"x".repeat(100_000)}`;
    const process = await sandbox.boundary.spawn({
      ...command(["sh", "-c", 'printf "%s|%s" "$1" "$V"', "sh", value]),
      env: { ...testEnv, V: value },
    });
    const result = await outcome(process);
    expect(result.stdout).toBe(`${value}|${value}`);
  });

  it("takes argv and environment together of more than one frame and refuses what is beyond the limit", async () => {
    const argv = ["sh", "-c", 'echo "$#"', "sh", ...Array.from({ length: 12 }, () => "y".repeat(100_000))];
    expect((await sandbox.run(argv)).stdout).toBe("12\n");
    const tooMuch = ["true", ...Array.from({ length: 30 }, () => "y".repeat(100_000))];
    await expect(sandbox.run(tooMuch)).rejects.toMatchObject({ errno: "E2BIG" });
    expect((await sandbox.run(["echo", "still here"])).stdout).toBe("still here\n");
  });

  it("feeds stdin and ends it", async () => {
    const process = await sandbox.boundary.spawn(command(["wc", "-c"]));
    process.stdin.write(Buffer.alloc(1_000_000));
    process.stdin.end();
    expect((await outcome(process)).stdout.trim()).toBe("1000000");
  });

  it("closeStdin ends stdin after what was written", async () => {
    const process = await sandbox.boundary.spawn(command(["cat"]));
    process.stdin.write("hello");
    const [result] = await Promise.all([outcome(process), process.closeStdin()]);
    expect(result.stdout).toBe("hello");
  });

  it("looks a program up in the PATH of its environment", async () => {
    await expect(sandbox.run(["no-such-program"])).rejects.toMatchObject({ step: "exec", errno: "ENOENT" });
    await expect(sandbox.run(["/etc/passwd"])).rejects.toMatchObject({ step: "exec", errno: "EACCES" });
    const elsewhere = sandbox.boundary.spawn({ ...command(["sh"]), env: { PATH: "/nowhere" } });
    await expect(elsewhere).rejects.toMatchObject({ errno: "ENOENT" });
    const relative = await sandbox.boundary.spawn({ ...command(["./sh", "-c", "echo $0"], "/usr/bin"), env: {} });
    expect((await outcome(relative)).stdout).toBe("./sh\n");
  });

  it("refuses a working directory that does not exist, naming the step", async () => {
    const spawned = sandbox.boundary.spawn(command(["true"], "/nowhere"));
    await expect(spawned).rejects.toMatchObject({ step: "cwd", errno: "ENOENT" });
  });

  it("lets the agent reopen its own standard streams", async () => {
    const result = await sandbox.run(["sh", "-c", "echo a > /dev/stdout; echo b > /dev/stderr"]);
    expect(result).toMatchObject({ stdout: "a\n", stderr: "b\n", status: { kind: "exited", code: 0 } });
  });

  it("gives no other descriptor to the agent", async () => {
    const result = await sandbox.run(["sh", "-c", "ls /proc/self/fd | sort -n | tr '\\n' ' '"]);
    // The fourth is the directory that ls reads.
    expect(result.stdout).toBe("0 1 2 3 ");
  });

  it("starts every process as the agent, without any capability, in a session of its own", async () => {
    const { stdout } = await sandbox.run([
      "sh",
      "-c",
      "id -u; id -G; grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status; ps -o sid= $$",
    ]);
    const { uid } = sandbox.plan.identity;
    const lines = stdout.split("\n");
    expect(lines[0]).toBe(String(uid));
    expect(stdout.match(/Cap\w+:\t0{16}\n/g)).toHaveLength(4);
    expect(stdout).toContain("NoNewPrivs:\t1");
    expect(stdout).toContain("Seccomp:\t2");
  });

  it("delivers 1 GB of output whole", async () => {
    const program = ["sh", "-c", "head -c 1073741824 /dev/zero"];
    const read = async (output: AsyncIterable<Buffer>): Promise<number> => {
      const started = performance.now();
      let bytes = 0;
      for await (const part of output) bytes += part.length;
      expect(bytes).toBe(1_073_741_824);
      return 1024 / ((performance.now() - started) / 1000);
    };
    const process = await sandbox.boundary.spawn(command(program));
    const rate = await read(process.stdout);
    expect(await process.exit).toEqual({ kind: "exited", code: 0 });
    const plain = await read(spawn(program[0]!, program.slice(1), { stdio: ["ignore", "pipe", "ignore"] }).stdout);
    // Beside other tests, what a process outside gets is no more than a few times that.
    expect(rate, `MB/s, where a process outside has ${plain.toFixed(0)}`).toBeGreaterThan(Math.min(150, plain / 4));
  });

  it("delivers random output unchanged", async () => {
    const process = await sandbox.boundary.spawn(
      command(["sh", "-c", "head -c 20000000 /dev/urandom | tee /tmp/r; sha256sum /tmp/r >&2; rm /tmp/r"]),
    );
    const [stdout, stderr] = await Promise.all([collect(process.stdout), collect(process.stderr)]);
    expect(stderr.toString().slice(0, 64)).toBe(createHash("sha256").update(stdout).digest("hex"));
  });
});

describe("exit status", () => {
  it("is exact for 10,000 spawns of random codes and signals", { timeout: 300_000 }, async () => {
    const signals = [1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let wrong = 0;
    let next = 0;
    const worker = async (): Promise<void> => {
      while (next < 10_000) {
        next++;
        const signal = Math.random() < 0.5 ? signals[Math.floor(Math.random() * signals.length)] : undefined;
        const code = Math.floor(Math.random() * 256);
        const script = signal === undefined ? `exit ${code}` : `kill -${signal} $$`;
        const process = await sandbox.boundary.spawn(command(["sh", "-c", script]));
        const { status } = await outcome(process);
        const expected = signal === undefined ? { kind: "exited", code } : { kind: "signaled", signal };
        if (JSON.stringify(status) !== JSON.stringify(expected)) wrong++;
        process.stdin.destroy();
      }
    };
    await Promise.all(Array.from({ length: 16 }, worker));
    expect(wrong).toBe(0);
  });

  it("is right while the agent floods init with orphans", async () => {
    const flood = await sandbox.boundary.spawn(
      command(["sh", "-c", "i=0; while [ $i -lt 400 ]; do (sh -c 'exit 3' &) ; i=$((i+1)); done; exit 5"]),
    );
    const results = await Promise.all(
      Array.from({ length: 100 }, async (_, i) => (await sandbox.run(["sh", "-c", `exit ${i}`])).status),
    );
    expect(results).toEqual(Array.from({ length: 100 }, (_, code) => ({ kind: "exited", code })));
    expect((await outcome(flood)).status).toEqual({ kind: "exited", code: 5 });
  });

  it("is told although the process ended before init knew that it was there (#3142)", async () => {
    await sandbox.run(["true"]);
    // With nothing else running, init's children are its helpers; one of them forks, and says so afterwards.
    const helpers = childrenOf(sandbox.launched.pid);
    let held = true;
    const signalAll = (signal: NodeJS.Signals): void => {
      for (const pid of helpers) {
        try {
          process.kill(pid, signal);
        } catch (error) {
          // What ran last may have been listed in its last moment.
          if (systemCode(error) !== "ESRCH") throw error;
        }
      }
    };
    const hold = async (): Promise<void> => {
      while (held) {
        signalAll("SIGSTOP");
        await sleep(8);
        signalAll("SIGCONT");
        await sleep(1);
      }
    };
    const holding = hold();
    const told: (ExitStatus | undefined)[] = [];
    const worker = async (first: number): Promise<void> => {
      for (let code = first; code < 400; code += 8) {
        const ended = sandbox.run(["sh", "-c", `exit ${code % 256}`]).then(({ status }) => status);
        told[code] = await Promise.race([ended, sleep(5_000, undefined as ExitStatus | undefined)]);
      }
    };
    try {
      await Promise.all(Array.from({ length: 8 }, (_, first) => worker(first)));
    } finally {
      held = false;
      await holding;
    }
    expect(told).toEqual(Array.from({ length: 400 }, (_, code) => ({ kind: "exited", code: code % 256 })));
  });

  it("leaves no zombie and no descriptor behind", async () => {
    const own = (): number => readdirSync("/proc/self/fd").length;
    await sandbox.run(["true"]);
    const before = own();
    await Promise.all(Array.from({ length: 50 }, () => sandbox.run(["sh", "-c", "(sleep 0.01 &) ; exit 1"])));
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(own()).toBeLessThanOrEqual(before + 2);
    const { stdout } = await sandbox.run(["sh", "-c", "ps -e -o stat= | grep -c Z"]);
    expect(stdout.trim()).toBe("0");
  });
});

describe("signals", () => {
  it("reach the process, and its group on demand", async () => {
    const process = await sandbox.boundary.spawn(
      command(["sh", "-c", "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done"]),
    );
    const result = outcome(process);
    await new Promise((resolve) => setTimeout(resolve, 150));
    await process.signal(constants.signals.SIGUSR1);
    expect(await result).toMatchObject({ stdout: "ready\ncaught\n", status: { kind: "exited", code: 9 } });

    const group = await sandbox.boundary.spawn(command(["sh", "-c", "sleep 60; exit 1"]));
    await new Promise((resolve) => setTimeout(resolve, 100));
    await group.signal(constants.signals.SIGKILL, "group");
    expect(await group.exit).toEqual({ kind: "signaled", signal: 9 });
    const left = await sandbox.run(["sh", "-c", "ps -e -o args= | grep -c '^sleep 60' || true"]);
    expect(left.stdout.trim()).toBe("0");
  });

  it("to a process that has ended are an error", async () => {
    const process = await sandbox.boundary.spawn(command(["true"]));
    await process.exit;
    await expect(process.signal(15)).rejects.toMatchObject({ errno: "ESRCH" });
  });
});

describe("spawn with a terminal", () => {
  const pty = (argv: readonly string[]) => ({
    ...command(argv),
    stdio: { kind: "pty", rows: 33, columns: 101 } as const,
  });

  it("gives a controlling terminal of the asked size that belongs to the agent", async () => {
    const process = await sandbox.boundary.spawn(
      pty(["sh", "-c", "stty size; test -O $(tty) && echo mine; echo x > /dev/tty"]),
    );
    expect(process.stderr).toBeUndefined();
    expect((await outcome(process)).stdout).toBe("33 101\r\nmine\r\nx\r\n");
  });

  it("resizes, telling the foreground group", async () => {
    const process = await sandbox.boundary.spawn(
      pty(["bash", "-c", "trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.02; done"]),
    );
    const result = outcome(process);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await process.resize(50, 200);
    expect(await result).toEqual({ status: { kind: "exited", code: 4 }, stdout: "ready\r\n50 200\r\n", stderr: "" });
  });

  it("takes input, and signals typed as keys", async () => {
    const process = await sandbox.boundary.spawn(pty(["sh", "-c", "read line; echo got $line; cat"]));
    const result = outcome(process);
    process.stdin.write("hello\n");
    await new Promise((resolve) => setTimeout(resolve, 200));
    process.stdin.write("\u0003");
    const { status, stdout } = await result;
    expect(stdout).toContain("got hello");
    expect(status).toEqual({ kind: "signaled", signal: 2 });
  });

  it("closeStdin is end of file, and a program that closes its streams early is not hung up on", async () => {
    const process = await sandbox.boundary.spawn(pty(["cat"]));
    const result = outcome(process);
    await new Promise((resolve) => setTimeout(resolve, 100));
    await process.closeStdin();
    expect((await result).status).toEqual({ kind: "exited", code: 0 });
  });

  it("loses no byte of many short runs", async () => {
    const text = Array.from({ length: 300 }, (_, i) => `line ${i}`).join("\r\n");
    for (let i = 0; i < 100; i++) {
      const process = await sandbox.boundary.spawn(pty(["seq", "-f", "line %g", "0", "299"]));
      expect((await outcome(process)).stdout).toBe(`${text}\r\n`);
    }
  });

  it("signals the foreground group of the terminal", async () => {
    const process = await sandbox.boundary.spawn(pty(["bash", "-i", "-c", "sleep 77; echo after"]));
    const result = outcome(process);
    await new Promise((resolve) => setTimeout(resolve, 300));
    await process.signal(constants.signals.SIGINT, "group");
    await result;
    const left = await sandbox.run(["sh", "-c", "ps -e -o args= | grep -c '^sleep 77' || true"]);
    expect(left.stdout.trim()).toBe("0");
  });
});

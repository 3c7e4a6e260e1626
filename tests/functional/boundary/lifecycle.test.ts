import { type ChildProcess, spawn } from "node:child_process";
import {
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { attachLocalBoundary } from "@openshell/boundary/local/attach.ts";
import { FRAME_ATTACH_MAIN } from "@openshell/boundary/local/frames.ts";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import type { LaunchPlan } from "@openshell/boundary/local/plan.ts";
import { afterEach, describe, expect, it } from "vitest";
import { collect, command, openSandbox, outcome, runsAsRoot, type TestSandbox } from "../../support/boundary.ts";
import { allowedMs } from "../../support/slowness.ts";

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const alive = (pid: number): boolean => existsSync(`/proc/${pid}`) && !/^State:\s+Z/m.test(statusOf(pid));
function statusOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/status`, "utf8");
  } catch {
    return "State: Z";
  }
}
async function until(what: string, condition: () => boolean | Promise<boolean>, ms = 5_000): Promise<number> {
  const started = performance.now();
  while (!(await condition())) {
    if (performance.now() - started > ms) throw new Error(`not within ${ms} ms: ${what}`);
    await pause(5);
  }
  return performance.now() - started;
}

const open: TestSandbox[] = [];
async function sandboxWith(options: Parameters<typeof openSandbox>[0] = {}): Promise<TestSandbox> {
  const sandbox = await openSandbox(options);
  open.push(sandbox);
  return sandbox;
}
const holders: ChildProcess[] = [];
afterEach(async () => {
  for (const holder of holders.splice(0)) holder.kill("SIGKILL");
  for (const sandbox of open.splice(0)) {
    await sandbox[Symbol.asyncDispose]();
    // Init is killed from outside here; what a version 1 freezer holds dies only once it is thawed.
    const state = join(sandbox.plan.freezer.folder, "workload", "freezer.state");
    if (sandbox.plan.freezer.kind === "v1") writeFileSync(state, "THAWED");
  }
  for (const folder of cgroups.splice(0)) {
    await until("empty cgroup", () => {
      try {
        if (existsSync(join(folder, "workload"))) rmdirSync(join(folder, "workload"));
        rmdirSync(folder);
        return true;
      } catch {
        return false;
      }
    });
  }
});

/** The kinds of freezer that this machine and this user can have. */
const cgroups: string[] = [];
const UNIFIED = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].find(
  (path) => existsSync(join(path, "cgroup.procs")) && existsSync(join(path, "cgroup.controllers")),
);
const V1 = "/sys/fs/cgroup/freezer";
const freezers: LaunchPlan["freezer"]["kind"][] = ["signals"];
if (runsAsRoot && UNIFIED !== undefined) freezers.push("v2");
if (runsAsRoot && existsSync(join(V1, "cgroup.procs"))) freezers.push("v1");

function freezerPlan(kind: LaunchPlan["freezer"]["kind"]): Pick<LaunchPlan, "freezer" | "cgroupProcs"> {
  if (kind === "signals") return { freezer: { kind, folder: "" }, cgroupProcs: [] };
  const folder = join(kind === "v2" ? UNIFIED! : V1, `osb-test-${process.pid}-${cgroups.length}`);
  mkdirSync(folder);
  cgroups.push(folder);
  return { freezer: { kind, folder }, cgroupProcs: [join(folder, "cgroup.procs")] };
}

function hold(
  sandbox: TestSandbox,
  more: { main?: readonly string[]; exec?: readonly string[]; saved?: string },
): ChildProcess {
  const order = {
    socketPath: sandbox.plan.controlSocket,
    nonce: Buffer.from(sandbox.plan.nonce).toString("hex"),
    sandboxId: sandbox.plan.sandboxId,
    netnsCookie: String(sandbox.launched.netnsCookie),
    ...more,
  };
  const holder = spawn(process.execPath, [join(import.meta.dirname, "holder.ts"), JSON.stringify(order)], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  holders.push(holder);
  return holder;
}
async function held(holder: ChildProcess): Promise<void> {
  let text = "";
  for await (const part of holder.stderr as AsyncIterable<Buffer>) {
    text += part;
    if (text.includes("holding")) return;
  }
  throw new Error(`the holder ended: ${text}`);
}

const TICKER = ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"];

describe.each(freezers)("freeze by %s", (kind) => {
  it("stops every process and thaw lets them run on", async () => {
    const sandbox = await sandboxWith(freezerPlan(kind));
    const main = await sandbox.boundary.startMain(
      command([
        "sh",
        "-c",
        "for n in 1 2 3 4; do (while :; do date +%s%N > /tmp/t$n; done) & done; while :; do echo x; sleep 0.005; done",
      ]),
    );
    let bytes = 0;
    main.stdout.on("data", (data: Buffer) => {
      bytes += data.length;
    });
    await until("output", () => bytes > 20);
    await sandbox.boundary.freeze();
    await pause(100);
    const before = bytes;
    await pause(300);
    expect(bytes).toBe(before);
    await expect(sandbox.boundary.spawn(command(["true"]))).rejects.toMatchObject({ errno: "EBUSY" });
    await sandbox.boundary.thaw();
    await until("output again", () => bytes > before + 20);
    expect((await sandbox.run(["echo", "back"])).stdout).toBe("back\n");
  });

  it("stops what hides at the end of a chain of 300 processes", { timeout: 30_000 }, async () => {
    const sandbox = await sandboxWith(freezerPlan(kind));
    const script = [
      "import os, sys, time",
      "for depth in range(300):",
      "    pid = os.fork()",
      "    if pid != 0: os.waitpid(pid, 0); os._exit(0)",
      "while True: os.write(1, b'x'); time.sleep(0.005)",
    ].join("\n");
    const main = await sandbox.boundary.startMain(command(["python3", "-c", script]));
    let bytes = 0;
    main.stdout.on("data", (data: Buffer) => {
      bytes += data.length;
    });
    await until("output", () => bytes > 5, 20_000);
    await sandbox.boundary.freeze();
    await pause(100);
    const before = bytes;
    await pause(300);
    expect(bytes).toBe(before);
    await sandbox.boundary.thaw();
    await until("output again", () => bytes > before);
  });

  it("terminate ends a frozen sandbox", async () => {
    const sandbox = await sandboxWith(freezerPlan(kind));
    await sandbox.boundary.startMain(command(TICKER));
    await sandbox.boundary.freeze();
    await sandbox.boundary.terminate(500);
    expect((await sandbox.boundary.ended).kind).toBe("terminated");
    await until("init gone", () => !alive(sandbox.launched.pid));
  });

  it("kill -9 of the host during traffic: no byte leaves, main and its output go on, back in 2 s", async () => {
    const sandbox = await sandboxWith(freezerPlan(kind));
    await sandbox.boundary[Symbol.asyncDispose]();
    // Counts what it got from outside, and prints a line of every attempt.
    const script = `
import socket, time
i = 0
while True:
    i += 1
    try:
        s = socket.create_connection(("1.2.3.4", 443), 5); s.sendall(b"x"); a = s.recv(100).decode().strip(); s.close()
    except Exception as e: a = "failed"
    print(i, time.time(), a, flush=True); time.sleep(0.002)
`;
    const first = hold(sandbox, { main: ["python3", "-c", script], exec: ["sleep", "1000"], saved: "table" });
    const lines: string[] = [];
    let rest = "";
    const take = (data: Buffer): void => {
      const parts = (rest + data.toString()).split("\n");
      rest = parts.pop() ?? "";
      lines.push(...parts);
    };
    first.stdout?.on("data", take);
    await held(first);
    await until("traffic", () => lines.length > 50);
    const insidePids = (): number => pidsOf(sandbox).length;
    const withExec = insidePids();
    first.kill("SIGKILL");
    await new Promise((resolve) => first.once("close", resolve));
    await until("the exec process ended with its host", () => insidePids() < withExec, 2_000);
    await pause(400);
    const atDeath = lines.length;
    await pause(200);
    expect(lines.length, "nothing arrives while no host is there").toBe(atDeath);

    const started = performance.now();
    const second = hold(sandbox, {});
    const from: string[] = [];
    second.stdout?.on("data", (data: Buffer) => {
      take(data);
      if (from.length === 0) from.push(data.toString());
    });
    await held(second);
    await until("served again", () => lines.some((line) => line.endsWith(`served by ${second.pid}`)));
    expect(performance.now() - started, "re-attach and traffic, with a cold start of Node").toBeLessThan(
      allowedMs(2_000),
    );
    // Every line of main is there but those that died in the first holder's memory, in order, none twice.
    const numbers = lines.map((line) => Number(line.split(" ")[0]));
    expect(numbers.every((n, i) => i === 0 || n > numbers[i - 1]!)).toBe(true);
    // No attempt succeeded between death and successor: each was served by one of the two.
    for (const line of lines) expect(line).toMatch(/^\d+ [\d.]+ (served by \d+|failed|)$/);

    const third = await attachLocalBoundary(sandbox.attachOptions());
    expect(third.state).toBe("main_started");
    expect(Buffer.from(await third.loadState()).toString()).toBe("table");
    await third.terminate(100);
  }, 30_000);
});

function pidsOf(sandbox: TestSandbox): number[] {
  const ns = pidNamespace(sandbox.launched.pid);
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => pidNamespace(pid) === ns);
}
/** NSpid of a process of a child namespace has two columns or more; init's children share its session tree. */
function pidNamespace(pid: number): number | undefined {
  if (pid === 0) return undefined;
  const parent = /^PPid:\s+(\d+)/m.exec(statusOf(pid))?.[1];
  if (open.some(({ launched }) => launched.pid === pid)) return pid;
  return parent === undefined || parent === "0" || parent === "1" ? undefined : pidNamespace(Number(parent));
}

describe("main process", () => {
  it("keeps its exit status and last output for a successor until acknowledged", async () => {
    const sandbox = await sandboxWith();
    const main = await sandbox.boundary.startMain(command(["sh", "-c", "sleep 0.2; echo last words; exit 42"]));
    expect(sandbox.boundary.main).toBe(main);
    await sandbox.boundary[Symbol.asyncDispose]();
    const second = await attachLocalBoundary(sandbox.attachOptions());
    expect(second.state).toBe("main_started");
    await second.resume();
    expect(await outcome(second.main!)).toMatchObject({ status: { kind: "exited", code: 42 }, stdout: "last words\n" });
    await second[Symbol.asyncDispose]();

    const third = await attachLocalBoundary(sandbox.attachOptions());
    expect(third.state).toBe("main_exited");
    expect(await third.main?.exit).toEqual({ kind: "exited", code: 42 });
    await third.main?.acknowledgeExit();
    expect((await collect(third.main?.stdout)).toString()).toBe("");
    await third.terminate(0);
  });

  it("is started once, and only after confirm", async () => {
    const sandbox = await sandboxWith({ confirm: false });
    await expect(sandbox.boundary.startMain(command(["true"]))).rejects.toMatchObject({ errno: "EPERM" });
    await expect(sandbox.boundary.spawn(command(["true"]))).rejects.toMatchObject({ errno: "EPERM" });
    const { testRestrictions } = await import("../../support/boundary.ts");
    await sandbox.boundary.confirm(testRestrictions());
    await expect(sandbox.boundary.confirm(testRestrictions())).rejects.toMatchObject({ errno: "EALREADY" });
    await expect(sandbox.boundary.startMain(command(["nope"]))).rejects.toMatchObject({ errno: "ENOENT" });
    const main = await sandbox.boundary.startMain(command(["sleep", "5"]));
    await expect(sandbox.boundary.startMain(command(["true"]))).rejects.toMatchObject({ errno: "EALREADY" });
    await main.signal(9);
    expect(await main.exit).toEqual({ kind: "signaled", signal: 9 });
  });

  it("on a terminal survives its host and can be resized by the next", async () => {
    const sandbox = await sandboxWith();
    const spec = {
      ...command(["bash", "-c", "trap 'stty size' WINCH; echo up; while :; do sleep 0.02; done"]),
      stdio: { kind: "pty", rows: 5, columns: 6 } as const,
    };
    await sandbox.boundary.startMain(spec);
    await pause(200);
    await sandbox.boundary[Symbol.asyncDispose]();
    const second = await attachLocalBoundary(sandbox.attachOptions());
    await second.resume();
    let text = "";
    second.main?.stdout.on("data", (data: Buffer) => {
      text += data;
    });
    await second.main?.resize(44, 55);
    await until("new size", () => text.includes("44 55"));
    await second.main?.signal(9, "group");
    expect(await second.main?.exit).toEqual({ kind: "signaled", signal: 9 });
    await second.terminate(0);
  });

  it("reads end of file when its successor host closes stdin", async () => {
    const sandbox = await sandboxWith();
    await sandbox.boundary.startMain(command(["cat"]));
    await sandbox.boundary[Symbol.asyncDispose]();
    const second = await attachLocalBoundary(sandbox.attachOptions());
    await second.resume();
    second.main?.stdin.write("kept");
    await second.main?.closeStdin();
    expect(await outcome(second.main!)).toMatchObject({ stdout: "kept", status: { kind: "exited", code: 0 } });
    await second.terminate(0);
  });
});

describe("the end", () => {
  it("terminate asks main first, then ends everything", async () => {
    const sandbox = await sandboxWith();
    const main = await sandbox.boundary.startMain(
      command(["sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done"]),
    );
    const result = outcome(main);
    const stray = await sandbox.boundary.spawn(command(["sleep", "100"]));
    await pause(200);
    await sandbox.boundary.terminate(3_000);
    expect(await result).toMatchObject({ stdout: "up\nbye\n", status: { kind: "exited", code: 3 } });
    await expect(stray.exit).rejects.toMatchObject({ code: "boundary_lost" });
    expect(await sandbox.boundary.ended).toMatchObject({ kind: "terminated" });
  });

  it("terminate kills after the grace time what ignores SIGTERM", async () => {
    const sandbox = await sandboxWith();
    await sandbox.boundary.startMain(command(["sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"]));
    await pause(100);
    const started = performance.now();
    await sandbox.boundary.terminate(300);
    expect(performance.now() - started).toBeGreaterThanOrEqual(290);
    expect(performance.now() - started).toBeLessThan(1_500);
  });

  it("comes by itself after the orphan limit without a host", async () => {
    const sandbox = await sandboxWith({ orphanLimitMs: 400 });
    await sandbox.boundary.startMain(command(TICKER));
    await pause(600);
    expect(alive(sandbox.launched.pid), "not while a host is attached").toBe(true);
    await sandbox.boundary[Symbol.asyncDispose]();
    const took = await until("init ended", () => !alive(sandbox.launched.pid));
    expect(took).toBeGreaterThan(300);
    expect(took).toBeLessThan(1_500);
  });

  it("is reported when init is killed", async () => {
    const sandbox = await sandboxWith();
    const main = await sandbox.boundary.startMain(command(TICKER));
    process.kill(sandbox.launched.pid, "SIGKILL");
    expect(await sandbox.boundary.ended).toMatchObject({ kind: "terminated" });
    await expect(main.exit).rejects.toMatchObject({ code: "boundary_lost" });
    await expect(sandbox.boundary.spawn(command(["true"]))).rejects.toMatchObject({ code: "boundary_lost" });
    await expect(attachLocalBoundary(sandbox.attachOptions())).rejects.toMatchObject({ code: "boundary_lost" });
  });

  it("the latest attachment wins", async () => {
    const sandbox = await sandboxWith();
    const second = await attachLocalBoundary(sandbox.attachOptions());
    expect(await sandbox.boundary.ended).toMatchObject({ kind: "detached" });
    await second.resume();
    const process = await second.spawn(command(["echo", "mine"]));
    expect((await outcome(process)).stdout).toBe("mine\n");
    await second.terminate(0);
  });

  it("leaks no process, mount, descriptor or cgroup over 30 sandboxes", async () => {
    const count = () => ({
      mounts: readFileSync("/proc/self/mountinfo", "utf8").split("\n").length,
      fds: readdirSync("/proc/self/fd").length,
    });
    const round = async (): Promise<void> => {
      const sandbox = await openSandbox();
      const servers = sandbox.boundary.capture.tcp.map(({ fd }) => createServer().listen({ fd }));
      await sandbox.run(["true"]);
      await sandbox.boundary.terminate(0);
      for (const server of servers) server.close();
      await until("init gone", () => !alive(sandbox.launched.pid));
      await sandbox[Symbol.asyncDispose]();
    };
    await round();
    await pause(100);
    const before = count();
    for (let i = 0; i < 30; i++) await round();
    await pause(300);
    const after = count();
    expect(after.mounts).toBe(before.mounts);
    expect(after.fds).toBeLessThanOrEqual(before.fds + 2);
  });
});

it("a host that fails in the middle of attaching closes each descriptor once", async () => {
  const sandbox = await sandboxWith();
  await sandbox.boundary.startMain(command(["sleep", "60"]));
  await sandbox.boundary[Symbol.asyncDispose]();
  const addon = loadAddon();
  const failing = {
    ...addon,
    send(channel: object, bytes: Buffer, offset: number): number {
      if (bytes.readUInt16LE(4) === FRAME_ATTACH_MAIN) throw new Error("cut off");
      return addon.send(channel, bytes, offset);
    },
  };
  const watched: number[] = [];
  const open = failing.open;
  failing.open = (fd, callback, raw) => {
    if (raw) watched.push(fd);
    return open(fd, callback, raw);
  };
  await expect(attachLocalBoundary({ ...sandbox.attachOptions(), addon: failing })).rejects.toMatchObject({
    code: "boundary_lost",
  });
  // Closed while it is still watched, it would abort the process; closed twice, it would be another's the second time.
  expect(watched).toHaveLength(1);
  expect(() => fstatSync(watched[0]!)).not.toThrow();
  await until(
    "init's pidfd is closed",
    () => readdirSync("/proc/self/fd").every((name) => Number(name) !== watched[0]),
    7_000,
  );
  const other = openSync("/dev/null", "r");
  await pause(1_000);
  expect(() => closeSync(other)).not.toThrow();
});

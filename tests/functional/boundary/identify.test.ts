import { createHash } from "node:crypto";
import { closeSync, readFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import type { SandboxProcess, SocketOwner, SocketPair } from "@openshell/boundary";
import { originalDestination } from "@openshell/boundary/local/descriptors.ts";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  collect,
  command,
  endInit,
  nativeParts,
  openSandbox,
  outcome,
  type TestSandbox,
} from "../../support/boundary.ts";
import { inMode } from "../../support/mode.ts";

let sandbox: TestSandbox;
const servers: Server[] = [];
const waiting: ((accepted: { socket: Socket; pair: SocketPair }) => void)[] = [];

beforeAll(async () => {
  sandbox = await openSandbox();
  const addon = loadAddon(nativeParts());
  for (const { fd, family } of sandbox.boundary.capture.tcp) {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      const handle = (socket as unknown as { _handle: { fd: number } })._handle.fd;
      const wanted = originalDestination(addon, handle, family) ?? {
        address: socket.localAddress!,
        port: socket.localPort!,
      };
      const local = { address: socket.remoteAddress!, port: socket.remotePort! };
      waiting.shift()?.({ socket, pair: { family, local, remote: wanted } });
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen({ fd }, resolve));
  }
});
afterAll(async () => {
  for (const server of servers) server.close();
  await sandbox?.[Symbol.asyncDispose]();
});

const nextFlow = () => new Promise<{ socket: Socket; pair: SocketPair }>((resolve) => waiting.push(resolve));

/** Starts a client, waits for its connection, and asks who it is. */
async function flowOf(
  argv: readonly string[],
): Promise<{ process: SandboxProcess; socket: Socket; pair: SocketPair; owners: readonly SocketOwner[] }> {
  const flow = nextFlow();
  const process = await sandbox.boundary.spawn(command(argv));
  process.stderr?.resume();
  const { socket, pair } = await flow;
  return { process, socket, pair, owners: await sandbox.boundary.identify(pair) };
}
const close = (owners: readonly SocketOwner[]): void => {
  for (const { exeFd } of owners) if (exeFd !== undefined) closeSync(exeFd);
};
const helpersOf = ({ launched: { pid } }: TestSandbox): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8")
    .trim()
    .split(" ")
    .map(Number)
    .filter((child) => nameOf(child) === "openshell-init\n");
/** Of a process that ended since it was listed, none. */
function nameOf(pid: number): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8");
  } catch {
    return undefined;
  }
}
const CLIENT = "import socket, sys, time; s = socket.create_connection((sys.argv[1], 443), 5); time.sleep(60)";

describe("identify", () => {
  it.each(["1.2.3.4", "2001:db8:1::1", "::ffff:5.6.7.8"])("names the process that connected to %s", async (address) => {
    const { process, socket, owners } = await flowOf(["python3", "-c", CLIENT, address]);
    expect(owners).toHaveLength(1);
    const [owner] = owners;
    expect(owner?.pid).toBe(process.pid);
    expect(owner?.exe).toMatch(/^\/usr\/bin\/python3/);
    const onHost = createHash("sha256").update(readFileSync(owner!.exe)).digest("hex");
    expect(createHash("sha256").update(readFileSync(owner!.exeFd!)).digest("hex")).toBe(onHost);
    expect(owner?.exeKey?.ino).toBeGreaterThan(0n);
    expect(owner?.exeKey?.ctimeNs).toBeGreaterThan(0n);
    expect(owner?.ancestors).toEqual([]);
    close(owners);
    socket.destroy();
    await process.signal(9);
    await process.exit;
  });

  it("names ancestors, nearest first", async () => {
    const script = 'bash -c "python3 -c \\"\\$0\\" 1.2.3.4; true" "$0"; true';
    const { process, socket, owners } = await flowOf(["sh", "-c", script, CLIENT]);
    expect(owners[0]?.ancestors.map(({ exe }) => exe.split("/").at(-1))).toEqual([
      "bash",
      expect.stringMatching(/^(da|ba)?sh$/),
    ]);
    expect(owners[0]?.ancestors.at(-1)?.pid).toBe(process.pid);
    close(owners);
    socket.destroy();
    await process.signal(9, "group");
    await process.exit;
  });

  it("names every owner of a shared socket", async () => {
    const script = `
import socket, os, time
s = socket.create_connection(("1.2.3.4", 443), 5)
if os.fork() == 0: os.execv("/bin/sleep", ["sleep", "60"]) if os.set_inheritable(s.fileno(), True) is None else 0
time.sleep(0.3); s.sendall(b"x"); time.sleep(60)`;
    const flow = nextFlow();
    const process = await sandbox.boundary.spawn(command(["python3", "-c", script]));
    const { socket, pair } = await flow;
    await new Promise<void>((resolve) => socket.once("data", () => resolve()));
    const owners = await sandbox.boundary.identify(pair);
    expect(
      owners
        .map(({ exe }) =>
          exe
            .split("/")
            .at(-1)!
            .replace(/[\d.]+$/, ""),
        )
        .sort(),
    ).toEqual(["python", "sleep"]);
    close(owners);
    socket.destroy();
    await process.signal(9, "group");
    await process.exit;
  });

  it("finds the next connection of a process at once, however many descriptors it holds besides", async () => {
    // 12,000 are more than one question may look at.
    const script = `
import os, resource, socket, sys, time
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
def connect(fd):
    s = socket.create_connection(("1.2.3.4", 443), 5); os.dup2(s.fileno(), fd); s.close(); os.write(fd, b"x")
connect(13000)
sys.stdin.read(1)
null = os.open("/dev/null", os.O_RDONLY)
for _ in range(12000): os.dup(null)
connect(13001)
time.sleep(60)`;
    const said = (socket: Socket) => new Promise<void>((resolve) => socket.once("data", () => resolve()));
    const first = nextFlow();
    const process = await sandbox.boundary.spawn(command(["python3", "-c", script]));
    const one = await first;
    await said(one.socket);
    const before = await sandbox.boundary.identify(one.pair);
    const second = nextFlow();
    process.stdin!.end("x");
    const other = await second;
    await said(other.socket);
    const after = await sandbox.boundary.identify(other.pair);
    expect([before, after].map((owners) => owners.map(({ pid }) => pid))).toEqual([[process.pid], [process.pid]]);
    close([...before, ...after]);
    one.socket.destroy();
    other.socket.destroy();
    await process.signal(9);
    await process.exit;
  });

  it("follows a socket to the program that an owner became", async () => {
    const script = `
import socket, os, time
s = socket.create_connection(("1.2.3.4", 443), 5); os.set_inheritable(s.fileno(), True)
s.sendall(b"x"); time.sleep(0.2); os.execv("/bin/sleep", ["sleep", "60"])`;
    const { process, socket, pair, owners } = await flowOf(["python3", "-c", script]);
    expect(owners[0]?.exe).toContain("python");
    close(owners);
    await new Promise((resolve) => setTimeout(resolve, 500));
    const later = await sandbox.boundary.identify(pair);
    expect(later[0]?.exe).toMatch(/sleep$/);
    close(later);
    socket.destroy();
    await process.signal(9);
    await process.exit;
  });

  it("resolves the name of a deleted executable, and tells it from a file really called so", async () => {
    const script =
      'cp /usr/bin/python3 /home/agent/py; (sleep 0.2; rm /home/agent/py) & exec /home/agent/py -c "$0" 1.2.3.4';
    const first = await flowOf(["sh", "-c", script, CLIENT]);
    await new Promise((resolve) => setTimeout(resolve, 500));
    const owners = await sandbox.boundary.identify(first.pair);
    expect(owners[0]?.exe).toBe("/home/agent/py");
    expect(owners[0]?.exeFd).toBeDefined();
    close([...first.owners, ...owners]);
    first.socket.destroy();
    await first.process.signal(9, "group");

    const odd = "cp /usr/bin/python3 '/home/agent/py (deleted)'; exec '/home/agent/py (deleted)' -c \"$0\" 1.2.3.4";
    const second = await flowOf(["sh", "-c", odd, CLIENT]);
    expect(second.owners[0]?.exe).toBe("/home/agent/py (deleted)");
    close(second.owners);
    second.socket.destroy();
    await second.process.signal(9, "group");
  });

  it("has no identity for an executable that may not be read, and one for the agent's private programs", async () => {
    const run = (mode: string) =>
      flowOf([
        "sh",
        "-c",
        `cp /usr/bin/python3 /home/agent/x${mode}; chmod ${mode} /home/agent/x${mode}; exec /home/agent/x${mode} -c "$0" 1.2.3.4`,
        CLIENT,
      ]);
    const unreadable = await run("111");
    // A single id cannot look at such a process at all: then nobody is found, which denies as well.
    expect(unreadable.owners).toHaveLength(inMode({ root: 1, user: 0 }));
    expect(unreadable.owners[0]?.exeFd).toBeUndefined();
    expect(unreadable.owners[0]?.exeKey).toBeUndefined();
    const personal = await run("700");
    expect(personal.owners[0]?.exeFd).toBeDefined();
    close(personal.owners);
    for (const { socket, process } of [unreadable, personal]) {
      socket.destroy();
      await process.signal(9, "group");
    }
  });

  it("finds nobody for a closed connection and for one that never was", async () => {
    const { process, socket, pair, owners } = await flowOf(["python3", "-c", CLIENT, "1.2.3.4"]);
    close(owners);
    await process.signal(9);
    await process.exit;
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(await sandbox.boundary.identify(pair)).toEqual([]);
    socket.destroy();
    const never: SocketPair = {
      family: 4,
      local: { address: "127.0.0.1", port: 4 },
      remote: { address: "9.9.9.9", port: 443 },
    };
    expect(await sandbox.boundary.identify(never)).toEqual([]);
    const listener: SocketPair = {
      ...never,
      local: { address: "127.0.0.1", port: 3128 },
      remote: { address: "127.0.0.1", port: 9 },
    };
    expect(await sandbox.boundary.identify(listener)).toEqual([]);
  });

  it("stays within its time with 200 processes of 50 descriptors", async () => {
    const crowd = await sandbox.boundary.spawn(
      command([
        "python3",
        "-c",
        "import os,time\nfds=[os.open('/dev/null',0) for _ in range(50)]\nfor _ in range(200):\n  if os.fork()==0: time.sleep(100)\nprint('up',flush=True)\ntime.sleep(100)",
      ]),
    );
    await new Promise((resolve) => crowd.stdout.once("data", resolve));
    const { process, socket, pair, owners } = await flowOf(["python3", "-c", CLIENT, "1.2.3.4"]);
    expect(owners.map(({ pid }) => pid)).toContain(process.pid);
    close(owners);
    const times: number[] = [];
    for (let i = 0; i < 20; i++) {
      const started = performance.now();
      close(await sandbox.boundary.identify(pair));
      times.push(performance.now() - started);
    }
    times.sort((a, b) => a - b);
    expect(times[10]).toBeLessThan(12);
    socket.destroy();
    await process.signal(9);
    await crowd.signal(9, "group");
    await Promise.all([crowd.exit, collect(crowd.stdout).catch(() => {})]);
  });

  it("and spawning work again after init's helpers died", async () => {
    for (const pid of helpersOf(sandbox)) endInit(pid);
    // What a dying helper has been given already goes with it.
    await new Promise((resolve) => setTimeout(resolve, 100));
    const { process: client, socket, owners } = await flowOf(["python3", "-c", CLIENT, "1.2.3.4"]);
    expect(owners[0]?.pid).toBe(client.pid);
    close(owners);
    socket.destroy();
    await client.signal(9);
    await outcome(client);
  });

  it.each([
    [
      "waits for an identifier that gets no time on a busy machine",
      4_000,
      (pid: number) => process.kill(pid, "SIGCONT"),
    ],
    ["asks again what an identifier took with it when it died", 100, endInit],
  ])("%s", async (_name, stoppedMs, goOn) => {
    const { process: client, socket, pair, owners } = await flowOf(["python3", "-c", CLIENT, "1.2.3.4"]);
    close(owners);
    const helpers = helpersOf(sandbox);
    for (const pid of helpers) process.kill(pid, "SIGSTOP");
    const asked = Array.from({ length: 50 }, () => sandbox.boundary.identify(pair));
    await new Promise((resolve) => setTimeout(resolve, stoppedMs));
    for (const pid of helpers) goOn(pid);
    for (const found of await Promise.all(asked)) {
      expect(found[0]?.pid).toBe(client.pid);
      close(found);
    }
    socket.destroy();
    await client.signal(9);
    await outcome(client);
  });

  it("works again after the agent has killed everything it could", async () => {
    const killer = await sandbox.boundary.spawn(command(["python3", "-c", "import os\nos.kill(-1, 9)"]));
    await killer.exit;
    expect((await sandbox.run(["echo", "alive"]).catch(() => sandbox.run(["echo", "alive"]))).stdout).toBe("alive\n");
    const { process, socket, owners } = await flowOf(["python3", "-c", CLIENT, "1.2.3.4"]);
    expect(owners[0]?.pid).toBe(process.pid);
    close(owners);
    socket.destroy();
    await process.signal(9);
    await outcome(process);
  });
});

import { createSocket } from "node:dgram";
import { createServer, type Server, type Socket } from "node:net";
import type { CaptureMode } from "@openshell/boundary";
import { originalDestination } from "@openshell/boundary/local/descriptors.ts";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { nativeParts, openSandbox, runsAsRoot, type TestSandbox } from "../../support/boundary.ts";

const modes: readonly CaptureMode[] = runsAsRoot
  ? ["sk_lookup", "nft", "listener_per_port"]
  : ["nft", "listener_per_port"];

/** Connects, sends a line, prints the answer or the error; every wait is short. */
const CLIENT = `
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family); s.settimeout(3)
try:
    s.connect((sys.argv[1], int(sys.argv[2]))); s.sendall(b"hello\\n"); print(s.recv(200).decode(), end="")
except Exception as e:
    print("error", type(e).__name__, getattr(e, "errno", None))
`;

const UDP_CLIENT = `
import socket, sys, time
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)
t = time.time()
try:
    s.sendto(b"x", (sys.argv[1], int(sys.argv[2]))); print("answer", s.recv(200).decode(), end="")
except Exception as e:
    print("error", getattr(e, "errno", None), "fast" if time.time() - t < 0.5 else "slow", end="")
`;

describe.each(modes)("capture by %s", (mode) => {
  let sandbox: TestSandbox;
  const servers: Server[] = [];
  const python = (script: string, ...args: string[]) => sandbox.run(["python3", "-c", script, ...args]);
  const ask = async (address: string, port: number) => (await python(CLIENT, address, String(port))).stdout;

  beforeAll(async () => {
    sandbox = await openSandbox({ mode, ports: [80, 443, 3128, 5432] });
    const addon = loadAddon(nativeParts());
    const wanted = (socket: Socket, family: 4 | 6): string => {
      const fd = (socket as unknown as { _handle: { fd: number } })._handle.fd;
      const redirected = mode === "nft" ? originalDestination(addon, fd, family) : undefined;
      return redirected === undefined
        ? `${socket.localAddress} ${socket.localPort}`
        : `${redirected.address} ${redirected.port}`;
    };
    for (const { fd, family } of sandbox.boundary.capture.tcp) {
      const server = createServer((socket) => {
        socket.on("error", () => {});
        socket.once("data", () => socket.end(`${wanted(socket, family)} from ${socket.remoteAddress}\n`));
      });
      servers.push(server);
      await new Promise<void>((resolve) => server.listen({ fd, backlog: 4096 }, resolve));
    }
  });
  afterAll(async () => {
    for (const server of servers) server.close();
    await sandbox?.[Symbol.asyncDispose]();
  });

  it("reports its mode and hands out listeners of both families", () => {
    const { capture } = sandbox.boundary;
    expect(capture.mode).toBe(mode);
    const ports = mode === "listener_per_port" ? [80, 443, 3128, 5432] : [3128];
    expect(capture.tcp.map(({ family, port }) => `${family}/${port}`).sort()).toEqual(
      ports.flatMap((port) => [`4/${port}`, `6/${port}`]).sort(),
    );
  });

  it.each([
    ["93.184.216.34", 443],
    ["1.2.3.4", 80],
    ["169.254.169.254", 80],
    ["10.0.0.1", 5432],
    ["198.18.0.7", 443],
  ])("IPv4 %s:%d arrives with its destination", async (address, port) => {
    expect(await ask(address, port)).toBe(`${address} ${port} from 127.0.0.1\n`);
  });

  it.each([
    ["2606:2800:220:1:248:1893:25c8:1946", 443],
    ["fd00::1", 80],
    ["64:ff9b::a00:1", 5432],
  ])("IPv6 %s port %d arrives with its destination", async (address, port) => {
    expect(await ask(address, port)).toBe(`${address} ${port} from ::1\n`);
  });

  it("an IPv4 destination asked for through an IPv6 socket is an IPv4 flow", async () => {
    expect(await ask("::ffff:1.2.3.4", 443)).toContain("1.2.3.4 443");
  });

  it("every other port is captured too, or refused at once where listeners are per port", async () => {
    const answer = await ask("1.2.3.4", 54_321);
    if (mode === "listener_per_port") expect(answer).toBe("error OSError 101\n");
    else expect(answer).toBe("1.2.3.4 54321 from 127.0.0.1\n");
  });

  it("the proxy port answers on loopback", async () => {
    expect(await ask("127.0.0.1", 3128)).toContain("127.0.0.1 3128 from 127.0.0.1");
  });

  it("the agent's own local servers keep working, and nothing local is captured", async () => {
    const script = `
import socket, threading
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.9.9"), (socket.AF_INET6, "::1")):
    l = socket.socket(family); l.bind((address, 8080)); l.listen()
    threading.Thread(target=lambda: l.accept()[0].sendall(b"own"), daemon=True).start()
    c = socket.create_connection((address, 8080), 3); print(c.recv(9).decode(), end=" "); l.close()
try: socket.create_connection(("127.0.0.1", 8081), 3)
except ConnectionRefusedError: print("refused", end="")
`;
    expect((await python(script)).stdout).toBe("own own own refused");
  });

  it.each(["8.8.8.8", "10.0.0.1", "2001:4860:4860::8888"])("UDP to %s fails at once", async (address) => {
    for (const port of ["53", "443"])
      expect((await python(UDP_CLIENT, address, port)).stdout).toMatch(/^error 101 fast$/);
  });

  it("ICMP and raw sockets are refused", async () => {
    const script = `
import socket
for kind, protocol in ((socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.SOCK_DGRAM, socket.IPPROTO_ICMP), (socket.SOCK_RAW, socket.IPPROTO_TCP)):
    try: s = socket.socket(socket.AF_INET, kind, protocol); s.sendto(b"x", ("8.8.8.8", 0)); print("SENT")
    except OSError as e: print("no")
`;
    expect((await python(script)).stdout).toBe("no\nno\nno\n");
  });

  it("DNS sockets on 127.0.0.1:53 are the host's", async () => {
    const socket = createSocket("udp4");
    socket.on("message", (_, peer) => socket.send("pong", peer.port, peer.address));
    await new Promise<void>((resolve) => socket.bind({ fd: sandbox.boundary.capture.dnsUdp }, () => resolve()));
    const tcp = createServer((s) => s.end("tcp pong"));
    await new Promise<void>((resolve) => tcp.listen({ fd: sandbox.boundary.capture.dnsTcp }, resolve));
    try {
      expect((await python(UDP_CLIENT, "127.0.0.1", "53")).stdout).toBe("answer pong");
      expect(await ask("127.0.0.1", 53)).toBe("tcp pong");
      const bind = `
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    for address in ("127.0.0.1", "0.0.0.0"):
        s = socket.socket(socket.AF_INET, kind); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try: s.bind((address, 53)); print("BOUND")
        except OSError: print("no")
`;
      expect((await python(bind)).stdout).toBe("no\nno\nno\nno\n");
    } finally {
      socket.close();
      tcp.close();
    }
  });

  it("the agent can neither listen on the capture port nor take a foreign address", async () => {
    const script = `
import socket
for family, address, port in ((socket.AF_INET, "0.0.0.0", 3128), (socket.AF_INET6, "::", 3128), (socket.AF_INET, "1.2.3.4", 9999), (socket.AF_INET, "127.0.0.1", 443)):
    s = socket.socket(family); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try: s.bind((address, port)); s.listen(); print("BOUND", address, port)
    except OSError: print("no")
`;
    expect((await python(script)).stdout).toBe("no\nno\nno\nno\n");
  });

  it("carries 2,000 connections in a row, 32 at a time", async () => {
    const script = `
import socket, threading
bad = 0
def work():
    global bad
    for i in range(63):
        try:
            s = socket.create_connection(("1.2.3.4", 443), 5); s.sendall(b"x"); ok = s.recv(100).startswith(b"1.2.3.4 443"); s.close()
            if not ok: bad += 1
        except Exception: bad += 1
threads = [threading.Thread(target=work) for _ in range(32)]
[t.start() for t in threads]; [t.join() for t in threads]; print("bad", bad)
`;
    expect((await python(script)).stdout).toBe("bad 0\n");
  });
});

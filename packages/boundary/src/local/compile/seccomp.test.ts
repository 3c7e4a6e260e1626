import { describe, expect, it } from "vitest";
import { compileSeccomp, DENIED_SYSCALLS } from "./seccomp.ts";
import { type Architecture, AUDIT_ARCH, type SyscallName, syscallNumber } from "./syscalls.ts";

interface Call {
  readonly number: number;
  readonly arch?: number;
  readonly args?: readonly bigint[];
}

/** A classic BPF machine for the operations that seccomp allows us: returns the filter's verdict for one call. */
function run(program: Uint8Array, architecture: Architecture, call: Call): number {
  const data = new DataView(new ArrayBuffer(64));
  data.setUint32(0, call.number >>> 0, true);
  data.setUint32(4, call.arch ?? AUDIT_ARCH[architecture], true);
  for (const [index, value] of (call.args ?? []).entries()) data.setBigUint64(16 + 8 * index, value, true);
  const code = new DataView(program.buffer, program.byteOffset, program.length);
  let accumulator = 0;
  for (let pc = 0; pc * 8 < program.length; pc++) {
    const operation = code.getUint16(pc * 8, true);
    const [whenTrue, whenFalse] = [code.getUint8(pc * 8 + 2), code.getUint8(pc * 8 + 3)];
    const k = code.getUint32(pc * 8 + 4, true);
    const branch = (taken: boolean): void => {
      pc += taken ? whenTrue : whenFalse;
    };
    if (operation === 0x20) accumulator = data.getUint32(k, true);
    else if (operation === 0x54) accumulator = (accumulator & k) >>> 0;
    else if (operation === 0x15) branch(accumulator === k);
    else if (operation === 0x35) branch(accumulator >= k);
    else if (operation === 0x45) branch((accumulator & k) !== 0);
    else if (operation === 0x06) return k;
    else throw new Error(`operation ${operation} is not valid for seccomp`);
  }
  throw new Error("the filter ran off its end");
}

const ALLOW = 0x7fff0000;
const KILL = 0x80000000;
const errno = (value: number): number => 0x00050000 | value;
const EPERM = errno(1);

describe.each(["x64", "arm64"] as const)("seccomp filter on %s", (architecture) => {
  const program = compileSeccomp(architecture);
  const verdict = (name: SyscallName, ...args: (number | bigint)[]): number =>
    run(program, architecture, {
      number: syscallNumber(name, architecture)!,
      args: args.map((value) => BigInt.asUintN(64, BigInt(value))),
    });

  it("denies every listed call that exists here", () => {
    const denied = DENIED_SYSCALLS.filter((name) => syscallNumber(name, architecture) !== undefined);
    expect(denied.length).toBeGreaterThan(50);
    for (const name of denied) expect([name, verdict(name)]).toEqual([name, EPERM]);
  });

  it("allows every other call", () => {
    const named = new Set(
      [...DENIED_SYSCALLS, "socket", "socketpair", "clone3", "openat2", "prlimit64"].map((name) =>
        syscallNumber(name as SyscallName, architecture),
      ),
    );
    for (let number = 0; number < 600; number++) {
      if (!named.has(number)) expect([number, run(program, architecture, { number })]).toEqual([number, ALLOW]);
    }
  });

  it("ends a process that uses another machine's call table", () => {
    // i386, x32's own architecture value is that of x86_64.
    expect(run(program, architecture, { number: 1, arch: 0x40000003 })).toBe(KILL);
    const other = architecture === "x64" ? "arm64" : "x64";
    expect(run(program, architecture, { number: 1, arch: AUDIT_ARCH[other] })).toBe(KILL);
    if (architecture === "x64") {
      expect(run(program, architecture, { number: 0x40000000 | 41 })).toBe(KILL);
      expect(run(program, architecture, { number: -1 })).toBe(KILL);
    }
  });

  it("lets the C library fall back from clone3", () => {
    expect(verdict("clone3")).toBe(errno(38));
  });

  it("allows threads and forks, denies each new namespace in clone", () => {
    const threadFlags = 0x3d0f00;
    expect(verdict("clone", threadFlags)).toBe(ALLOW);
    expect(verdict("clone", 0x1200011)).toBe(ALLOW);
    for (const flag of [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]) {
      expect([flag, verdict("clone", flag | 17)]).toEqual([flag, EPERM]);
    }
  });

  it("opens Unix and internet sockets and route netlink, nothing else", () => {
    const [stream, dgram, raw, seqpacket, packet] = [1, 2, 3, 5, 10];
    const flags = 0x80800;
    for (const family of [2, 10]) {
      expect(verdict("socket", family, stream | flags, 0)).toBe(ALLOW);
      expect(verdict("socket", family, dgram | flags, 17)).toBe(ALLOW);
      expect(verdict("socket", family, stream, 262)).toBe(ALLOW);
      expect(verdict("socket", family, raw, 1)).toBe(EPERM);
      expect(verdict("socket", family, raw | flags, 255)).toBe(EPERM);
      expect(verdict("socket", family, packet, 3)).toBe(EPERM);
      expect(verdict("socket", family, seqpacket, 132)).toBe(EPERM);
      expect(verdict("socket", family, stream, 132)).toBe(errno(93));
      expect(verdict("socket", family, dgram, 136)).toBe(errno(93));
    }
    expect(verdict("socket", 1, seqpacket, 0)).toBe(ALLOW);
    expect(verdict("socket", 16, raw | flags, 0)).toBe(ALLOW);
    for (const protocol of [4, 9, 12, 15, 16]) expect(verdict("socket", 16, raw, protocol)).toBe(errno(93));
    // Packet, Bluetooth, ALG, VSOCK, XDP, CAN, TIPC, RDS.
    for (const family of [17, 31, 38, 40, 44, 29, 30, 21, 0]) {
      expect([family, verdict("socket", family, raw, 0)]).toEqual([family, errno(97)]);
    }
    expect(verdict("socketpair", 1, stream, 0)).toBe(ALLOW);
    expect(verdict("socketpair", 30, stream, 0)).toBe(errno(97));
  });

  it("denies terminal injection by the low 32 bits of the command, as the kernel reads it", () => {
    for (const command of [0x5412n, 0x541cn, 0x5423n, (1n << 32n) | 0x5412n, 0xffffffff_00005412n]) {
      expect(verdict("ioctl", 0, command)).toBe(EPERM);
    }
    // TCGETS, TIOCGWINSZ, FIONREAD, TIOCSPGRP, TIOCSCTTY.
    for (const command of [0x5401, 0x5413, 0x541b, 0x5410, 0x540e]) expect(verdict("ioctl", 0, command)).toBe(ALLOW);
  });

  it("never lets a file become set-id, however it gets its mode", () => {
    const exists = (name: SyscallName): boolean => syscallNumber(name, architecture) !== undefined;
    const [plain, sticky, create, tmpfile, cloexec] = [0o755, 0o1777, 0x41, 0x410002, 0x80000];
    for (const bits of [0o4755, 0o2755, 0o6755, 0o104755]) {
      expect(verdict("fchmod", 3, bits)).toBe(EPERM);
      expect(verdict("fchmodat", -100, 0, bits)).toBe(EPERM);
      expect(verdict("fchmodat2", -100, 0, bits, 0)).toBe(EPERM);
      expect(verdict("mknodat", -100, 0, bits, 0)).toBe(EPERM);
      expect(verdict("openat", -100, 0, create, bits)).toBe(EPERM);
      expect(verdict("openat", -100, 0, tmpfile, bits)).toBe(EPERM);
      // Without a flag that creates, the argument is whatever the register held.
      expect(verdict("openat", -100, 0, cloexec, bits)).toBe(ALLOW);
      if (exists("open")) expect(verdict("open", 0, create, bits)).toBe(EPERM);
      if (exists("open")) expect(verdict("open", 0, 0, bits)).toBe(ALLOW);
      for (const name of ["chmod", "creat", "mknod"] as const) {
        if (exists(name)) expect([name, verdict(name, 0, bits)]).toEqual([name, EPERM]);
      }
    }
    for (const mode of [plain, sticky]) {
      expect(verdict("fchmod", 3, mode)).toBe(ALLOW);
      expect(verdict("fchmodat", -100, 0o4755, mode)).toBe(ALLOW);
      expect(verdict("openat", 0o4755, 0o4755, create, mode)).toBe(ALLOW);
    }
    expect(verdict("openat2")).toBe(errno(38));
  });

  it("denies limits of another process", () => {
    expect(verdict("prlimit64", 0)).toBe(ALLOW);
    expect(verdict("prlimit64", 1)).toBe(EPERM);
    expect(verdict("prlimit64", 1n << 32n)).toBe(ALLOW);
    expect(verdict("prlimit64", -1)).toBe(EPERM);
  });
});

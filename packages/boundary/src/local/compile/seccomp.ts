import { Assembler } from "./cbpf.ts";
import { type Architecture, AUDIT_ARCH, type SyscallName, syscallNumber } from "./syscalls.ts";

// Offsets in struct seccomp_data; arguments are 64-bit, the low word comes first.
const NUMBER = 0;
const ARCH = 4;
const argument = (index: number): number => 16 + 8 * index;

const RET_ALLOW = 0x7fff0000;
const RET_KILL_PROCESS = 0x80000000;
const retErrno = (errno: number): number => 0x00050000 | errno;

const EPERM = 1;
const ENOSYS = 38;
const EPROTONOSUPPORT = 93;
const EAFNOSUPPORT = 97;

/** Bit that x32 calls carry in their number. */
const X32_SYSCALL_BIT = 0x40000000;

/** CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (NEWTIME shares bits with clone's exit signal: clone3 and unshare only.) */
const CLONE_NEW_ANY = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000;

const AF_UNIX = 1;
const AF_INET = 2;
const AF_INET6 = 10;
const AF_NETLINK = 16;
const NETLINK_ROUTE = 0;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
/** The type without SOCK_NONBLOCK and SOCK_CLOEXEC. */
const SOCK_TYPE_MASK = 0xf;
/** Default, ICMP echo, TCP, UDP, ICMPv6 echo, MPTCP. Others (SCTP, DCCP, UDP-Lite) would load kernel modules on demand. */
const INET_PROTOCOLS = [0, 1, 6, 17, 58, 262];

/**
 * S_ISUID | S_ISGID. What the agent writes into a volume belongs to the owner of the sandbox outside, so a set-id program
 * made there would run with that person's rights for everybody on the machine. The mount's nosuid holds only inside.
 */
const SET_ID_BITS = 0o6000;
/** O_CREAT and the bit that tells O_TMPFILE: open's mode counts only with one of them. */
const OPEN_CREATES = 0x40 | 0x400000;

/** Calls that give a file its mode, with the argument that is the mode and, for open, the flags. */
const MODE_ARGUMENTS: readonly { readonly name: SyscallName; readonly mode: number; readonly flags?: number }[] = [
  { name: "chmod", mode: 1 },
  { name: "fchmod", mode: 1 },
  { name: "fchmodat", mode: 2 },
  { name: "fchmodat2", mode: 2 },
  { name: "mknod", mode: 1 },
  { name: "mknodat", mode: 2 },
  { name: "creat", mode: 1 },
  { name: "open", mode: 2, flags: 1 },
  { name: "openat", mode: 3, flags: 2 },
];

/** Push a character into a terminal's input; console selection; line discipline (loads modules). The kernel takes the low 32 bits of the command. */
const DENIED_IOCTLS = { TIOCSTI: 0x5412, TIOCLINUX: 0x541c, TIOCSETD: 0x5423 };

/**
 * Calls refused whatever their arguments. None of them is needed by compilers, interpreters, shells, package managers
 * or test runners; each reaches namespaces, mounts, other processes, the machine as a whole or rarely used kernel code.
 * Installing a further filter or Landlock domain stays allowed: it can only restrict, and agents use it for their tools.
 */
export const DENIED_SYSCALLS: readonly SyscallName[] = [
  // Mounts, old and new interface.
  "mount",
  "umount2",
  "pivot_root",
  "chroot",
  "fsopen",
  "fsconfig",
  "fsmount",
  "fspick",
  "move_mount",
  "open_tree",
  "open_tree_attr",
  "mount_setattr",
  // Namespaces.
  "setns",
  "unshare",
  "sethostname",
  "setdomainname",
  // Other processes.
  "ptrace",
  "process_vm_readv",
  "process_vm_writev",
  "pidfd_getfd",
  "kcmp",
  // Keyrings are shared by user id, not by namespace.
  "add_key",
  "request_key",
  "keyctl",
  // Large attack surface.
  "bpf",
  "perf_event_open",
  "io_uring_setup",
  "io_uring_enter",
  "io_uring_register",
  "userfaultfd",
  "fanotify_init",
  "fanotify_mark",
  "modify_ldt",
  "lookup_dcookie",
  "nfsservctl",
  "uselib",
  "ustat",
  "sysfs",
  // File handles open files outside the visible tree.
  "open_by_handle_at",
  "name_to_handle_at",
  // The machine.
  "kexec_load",
  "kexec_file_load",
  "create_module",
  "init_module",
  "finit_module",
  "delete_module",
  "get_kernel_syms",
  "query_module",
  "reboot",
  "swapon",
  "swapoff",
  "acct",
  "quotactl",
  "quotactl_fd",
  "syslog",
  "settimeofday",
  "clock_settime",
  "clock_adjtime",
  "vhangup",
  "iopl",
  "ioperm",
];

/**
 * The seccomp filter of every agent process: a deny list, since agents run arbitrary tools; what it denies answers EPERM
 * so that programs report it. Calls of another machine's table (32-bit, x32) end the process: their numbers would mean
 * something else. `clone3` and `openat2` answer ENOSYS, because what matters lies behind a pointer: callers fall back to
 * `clone` and `openat`.
 */
export function compileSeccomp(architecture: Architecture): Uint8Array {
  const asm = new Assembler();
  const number = (name: SyscallName): number => {
    const value = syscallNumber(name, architecture);
    if (value === undefined) throw new Error(`${name} does not exist on ${architecture}`);
    return value;
  };

  asm.load(ARCH).jump("==", AUDIT_ARCH[architecture], undefined, "kill");
  asm.load(NUMBER);
  if (architecture === "x64") asm.jump(">=", X32_SYSCALL_BIT, "kill");

  asm.jump("==", number("socket"), "socket");
  asm.jump("==", number("socketpair"), "socketpair");
  asm.jump("==", number("ioctl"), "ioctl");
  asm.jump("==", number("clone"), "clone");
  asm.jump("==", number("prlimit64"), "prlimit64");
  asm.jump("==", number("clone3"), "enosys");
  // Its mode lies behind a pointer; callers fall back to openat.
  asm.jump("==", number("openat2"), "enosys");
  const modes = MODE_ARGUMENTS.flatMap((call) => {
    const value = syscallNumber(call.name, architecture);
    if (value === undefined) return [];
    const label = call.flags === undefined ? `mode_${call.mode}` : `open_mode_${call.mode}`;
    asm.jump("==", value, label);
    return [{ ...call, label }];
  });
  for (const name of DENIED_SYSCALLS) {
    const value = syscallNumber(name, architecture);
    if (value !== undefined) asm.jump("==", value, "eperm");
  }
  asm.ret(RET_ALLOW);

  asm.label("socket").load(argument(0));
  asm.jump("==", AF_UNIX, "allow");
  asm.jump("==", AF_INET, "inet");
  asm.jump("==", AF_INET6, "inet");
  asm.jump("==", AF_NETLINK, undefined, "family");
  asm.load(argument(2)).jump("==", NETLINK_ROUTE, "allow", "protocol");

  asm.label("inet").load(argument(1)).and(SOCK_TYPE_MASK);
  asm.jump("==", SOCK_STREAM, "inet_protocol");
  asm.jump("==", SOCK_DGRAM, undefined, "eperm");
  asm.label("inet_protocol").load(argument(2));
  for (const protocol of INET_PROTOCOLS) asm.jump("==", protocol, "allow");
  asm.label("protocol").ret(retErrno(EPROTONOSUPPORT));

  asm.label("socketpair").load(argument(0)).jump("==", AF_UNIX, "allow");
  asm.label("family").ret(retErrno(EAFNOSUPPORT));

  asm.label("ioctl").load(argument(1));
  for (const command of Object.values(DENIED_IOCTLS)) asm.jump("==", command, "eperm");
  asm.ret(RET_ALLOW);

  asm.label("clone").load(argument(0)).jump("&", CLONE_NEW_ANY, "eperm", "allow");

  // 0 is the caller; the kernel takes the pid as an int, so only the low word counts.
  asm.label("prlimit64").load(argument(0)).jump("==", 0, "allow", "eperm");

  for (const call of new Map(modes.map((entry) => [entry.label, entry])).values()) {
    asm.label(call.label);
    if (call.flags !== undefined) asm.load(argument(call.flags)).jump("&", OPEN_CREATES, undefined, "allow");
    asm.load(argument(call.mode)).jump("&", SET_ID_BITS, "eperm", "allow");
  }

  asm.label("allow").ret(RET_ALLOW);
  asm.label("eperm").ret(retErrno(EPERM));
  asm.label("enosys").ret(retErrno(ENOSYS));
  asm.label("kill").ret(RET_KILL_PROCESS);
  return asm.assemble();
}

/** Node's name of the running machine as one that a filter exists for. */
export function filterArchitecture(arch: string): Architecture | undefined {
  return arch === "x64" || arch === "arm64" ? arch : undefined;
}

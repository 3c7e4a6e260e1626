/** Machines that programs are compiled for; Node's `process.arch`. */
export type Architecture = "x64" | "arm64";

/** AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 (linux/audit.h). */
export const AUDIT_ARCH: Readonly<Record<Architecture, number>> = { x64: 0xc000003e, arm64: 0xc00000b7 };

/** Numbers on both machines; undefined where the machine never had the call. */
interface Numbers {
  readonly x64: number;
  readonly arm64: number | undefined;
}

/** Since Linux 5.1 new calls have the same number everywhere. */
function both(number: number): Numbers {
  return { x64: number, arm64: number };
}

function on(x64: number, arm64?: number): Numbers {
  return { x64, arm64 };
}

/**
 * System calls that the filters name. Sources: arch/x86/entry/syscalls/syscall_64.tbl and
 * include/uapi/asm-generic/unistd.h.
 */
export const SYSCALLS = {
  acct: on(163, 89),
  add_key: on(248, 217),
  bpf: on(321, 280),
  chmod: on(90),
  chroot: on(161, 51),
  clock_adjtime: on(305, 266),
  clock_settime: on(227, 112),
  clone: on(56, 220),
  clone3: both(435),
  creat: on(85),
  create_module: on(174),
  delete_module: on(176, 106),
  fanotify_init: on(300, 262),
  fanotify_mark: on(301, 263),
  fchmod: on(91, 52),
  fchmodat: on(268, 53),
  fchmodat2: both(452),
  finit_module: on(313, 273),
  fsconfig: both(431),
  fsmount: both(432),
  fsopen: both(430),
  fspick: both(433),
  get_kernel_syms: on(177),
  init_module: on(175, 105),
  io_uring_enter: both(426),
  io_uring_register: both(427),
  io_uring_setup: both(425),
  ioctl: on(16, 29),
  ioperm: on(173),
  iopl: on(172),
  kcmp: on(312, 272),
  kexec_file_load: on(320, 294),
  kexec_load: on(246, 104),
  keyctl: on(250, 219),
  lookup_dcookie: on(212, 18),
  mknod: on(133),
  mknodat: on(259, 33),
  modify_ldt: on(154),
  mount: on(165, 40),
  mount_setattr: both(442),
  move_mount: both(429),
  name_to_handle_at: on(303, 264),
  nfsservctl: on(180, 42),
  open: on(2),
  open_by_handle_at: on(304, 265),
  open_tree: both(428),
  open_tree_attr: both(467),
  openat: on(257, 56),
  openat2: both(437),
  perf_event_open: on(298, 241),
  pidfd_getfd: both(438),
  pivot_root: on(155, 41),
  prlimit64: on(302, 261),
  process_vm_readv: on(310, 270),
  process_vm_writev: on(311, 271),
  ptrace: on(101, 117),
  query_module: on(178),
  quotactl: on(179, 60),
  quotactl_fd: both(443),
  reboot: on(169, 142),
  request_key: on(249, 218),
  setdomainname: on(171, 162),
  sethostname: on(170, 161),
  setns: on(308, 268),
  settimeofday: on(164, 170),
  socket: on(41, 198),
  socketpair: on(53, 199),
  swapoff: on(168, 225),
  swapon: on(167, 224),
  sysfs: on(139),
  syslog: on(103, 116),
  umount2: on(166, 39),
  unshare: on(272, 97),
  uselib: on(134),
  userfaultfd: on(323, 282),
  ustat: on(136),
  vhangup: on(153, 58),
} as const satisfies Readonly<Record<string, Numbers>>;

export type SyscallName = keyof typeof SYSCALLS;

/** The number of `name` on `architecture`, undefined where it does not exist. */
export function syscallNumber(name: SyscallName, architecture: Architecture): number | undefined {
  return SYSCALLS[name][architecture];
}

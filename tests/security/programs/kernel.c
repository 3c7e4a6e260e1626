/* Attempts against the kernel's boundaries. Usage: kernel GROUP. One line an attempt: "name OUTCOME", where OUTCOME is
 * "done" (the call succeeded) or the name of errno. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void report(const char *name, long result) {
  printf("%s %s\n", name, result < 0 ? strerrorname_np(errno) : "done");
  fflush(stdout);
}
#define TRY(name, call) do { errno = 0; report(name, (long)(call)); } while (0)

static void mounts(void) {
  mkdir("/tmp/m", 0755);
  TRY("tmpfs", mount("t", "/tmp/m", "tmpfs", 0, ""));
  TRY("proc", mount("p", "/tmp/m", "proc", 0, ""));
  TRY("sysfs", mount("s", "/tmp/m", "sysfs", 0, ""));
  TRY("cgroup2", mount("c", "/tmp/m", "cgroup2", 0, ""));
  TRY("overlay", mount("o", "/tmp/m", "overlay", 0, "lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w"));
  TRY("bind", mount("/usr", "/tmp/m", NULL, MS_BIND, NULL));
  TRY("remount-usr", mount(NULL, "/usr", NULL, MS_REMOUNT | MS_BIND, NULL));
  TRY("remount-root", mount(NULL, "/", NULL, MS_REMOUNT, NULL));
  TRY("shared", mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL));
  TRY("move", mount("/tmp", "/tmp/m", NULL, MS_MOVE, NULL));
  TRY("umount-proc", umount2("/proc", MNT_DETACH));
  TRY("umount-home", umount2("/sandbox", MNT_DETACH));
  TRY("pivot", syscall(SYS_pivot_root, ".", "."));
  TRY("chroot", chroot("/tmp"));
}

static void new_mounts(void) {
  TRY("fsopen", syscall(430, "tmpfs", 0));
  TRY("open_tree", syscall(428, AT_FDCWD, "/", 1));
  TRY("move_mount", syscall(429, AT_FDCWD, "/tmp", AT_FDCWD, "/tmp/m", 0));
  TRY("fspick", syscall(433, AT_FDCWD, "/", 0));
  TRY("fsmount", syscall(432, 0, 0, 0));
  TRY("fsconfig", syscall(431, 0, 6, NULL, NULL, 0));
  uint64_t attr[4] = {0, 1, 0, 0};
  TRY("mount_setattr", syscall(442, AT_FDCWD, "/usr", 0, attr, sizeof attr));
}

static int child_exits(void *unused) { _exit(0); }
static void namespaces(void) {
  static const struct { const char *name; unsigned long flag; } kinds[] = {
      {"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"net", CLONE_NEWNET}, {"pid", CLONE_NEWPID},
      {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}, {"cgroup", 0x02000000}, {"user+mount", CLONE_NEWUSER | CLONE_NEWNS}};
  static char stack[65536];
  char name[64], path[64];
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    snprintf(name, sizeof name, "unshare-%s", kinds[i].name);
    TRY(name, unshare(kinds[i].flag));
    snprintf(name, sizeof name, "clone-%s", kinds[i].name);
    TRY(name, clone(child_exits, stack + sizeof stack, (int)(kinds[i].flag | SIGCHLD), NULL));
  }
  TRY("unshare-time", unshare(0x80));
  /* The flags as a 64-bit number whose upper half the kernel ignores. */
  TRY("clone-high-bits", syscall(SYS_clone, 0xf00000000UL | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
  static const char *const own[] = {"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    snprintf(path, sizeof path, "/proc/self/ns/%s", own[i]);
    snprintf(name, sizeof name, "setns-%s", own[i]);
    int fd = open(path, O_RDONLY);
    TRY(name, fd < 0 ? -1 : setns(fd, 0));
  }
  int pidfd = (int)syscall(SYS_pidfd_open, getppid(), 0);
  TRY("setns-pidfd", setns(pidfd, CLONE_NEWNS));
}

static void clone_three(void) {
  uint64_t arguments[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
  TRY("clone3", syscall(435, arguments, sizeof arguments));
}

static void sockets(void) {
  TRY("raw-icmp", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  TRY("raw-raw", socket(AF_INET, SOCK_RAW, IPPROTO_RAW));
  TRY("raw6", socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
  TRY("raw-flags", socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  TRY("packet", socket(AF_PACKET, SOCK_RAW, 0x0300));
  TRY("packet-dgram", socket(AF_PACKET, SOCK_DGRAM, 0x0300));
  TRY("vsock", socket(40, SOCK_STREAM, 0));
  TRY("alg", socket(38, SOCK_SEQPACKET, 0));
  TRY("xdp", socket(44, SOCK_RAW, 0));
  TRY("can", socket(29, SOCK_RAW, 1));
  TRY("bluetooth", socket(31, SOCK_RAW, 1));
  TRY("tipc", socket(30, SOCK_RDM, 0));
  TRY("rds", socket(21, SOCK_SEQPACKET, 0));
  TRY("key", socket(15, SOCK_RAW, 2));
  TRY("rxrpc", socket(33, SOCK_DGRAM, AF_INET));
  TRY("kcm", socket(41, SOCK_DGRAM, 0));
  TRY("smc", socket(43, SOCK_STREAM, 0));
  TRY("x25", socket(9, SOCK_SEQPACKET, 0));
  TRY("sctp", socket(AF_INET, SOCK_STREAM, 132));
  TRY("sctp-seq", socket(AF_INET, SOCK_SEQPACKET, 132));
  TRY("dccp", socket(AF_INET, 6, 33));
  TRY("udplite", socket(AF_INET, SOCK_DGRAM, 136));
  TRY("sctp6", socket(AF_INET6, SOCK_STREAM, 132));
  TRY("l2tp", socket(AF_INET, SOCK_DGRAM, 115));
  /* The family as a 64-bit number whose upper half the kernel ignores. */
  TRY("packet-high-bits", syscall(SYS_socket, 0x100000000UL | AF_PACKET, SOCK_RAW, 0));
  TRY("raw-high-bits", syscall(SYS_socket, AF_INET, 0x100000000UL | SOCK_RAW, IPPROTO_ICMP));
  for (int protocol = 1; protocol < 23; protocol++) {
    char name[32];
    snprintf(name, sizeof name, "netlink-%d", protocol);
    TRY(name, socket(AF_NETLINK, SOCK_RAW, protocol));
  }
  int pair[2];
  TRY("socketpair-netlink", socketpair(AF_NETLINK, SOCK_RAW, 16, pair));
}

/* rtnetlink is open for reading; every change has to be refused. */
static void routes(void) {
  struct { struct nlmsghdr head; union { struct rtmsg route; struct ifaddrmsg address; struct ifinfomsg link; } body; char room[128]; } m;
  struct { struct nlmsghdr head; struct nlmsgerr error; char room[512]; } answer;
  static const struct { const char *name; int type, size; } changes[] = {
      {"add-route", RTM_NEWROUTE, sizeof(struct rtmsg)}, {"del-route", RTM_DELROUTE, sizeof(struct rtmsg)},
      {"add-address", RTM_NEWADDR, sizeof(struct ifaddrmsg)}, {"del-address", RTM_DELADDR, sizeof(struct ifaddrmsg)},
      {"add-link", RTM_NEWLINK, sizeof(struct ifinfomsg)}, {"set-link", RTM_SETLINK, sizeof(struct ifinfomsg)},
      {"del-link", RTM_DELLINK, sizeof(struct ifinfomsg)}, {"del-rule", 33, sizeof(struct rtmsg)},
      {"add-rule", 32, sizeof(struct rtmsg)}, {"add-neighbour", RTM_NEWNEIGH, 12}, {"add-qdisc", RTM_NEWQDISC, 20}};
  int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
  struct timeval limit = {.tv_sec = 2};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    memset(&m, 0, sizeof m);
    m.head = (struct nlmsghdr){NLMSG_LENGTH(changes[i].size), (uint16_t)changes[i].type, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, (uint32_t)i, 0};
    m.body.link.ifi_index = 1;
    if (changes[i].type == RTM_NEWADDR || changes[i].type == RTM_DELADDR) m.body.address = (struct ifaddrmsg){AF_INET, 8, 0, 0, 1};
    if (send(fd, &m, m.head.nlmsg_len, 0) < 0) { report(changes[i].name, -1); continue; }
    if (recv(fd, &answer, sizeof answer, 0) < 0) { report(changes[i].name, -1); continue; }
    errno = -answer.error.error;
    report(changes[i].name, answer.error.error == 0 ? 0 : -1);
  }
  struct ifreq ifr = {0};
  strcpy(ifr.ifr_name, "lo");
  int s = socket(AF_INET, SOCK_DGRAM, 0);
  TRY("ioctl-link-down", ioctl(s, 0x8914, &ifr));
  TRY("ioctl-address", ioctl(s, 0x8916, &ifr));
  int mark = 7;
  TRY("so-mark", setsockopt(s, SOL_SOCKET, SO_MARK, &mark, sizeof mark));
  int one = 1;
  TRY("ip-transparent", setsockopt(s, SOL_IP, 19, &one, sizeof one));
  TRY("tun", open("/dev/net/tun", O_RDWR));
}

static void surface(void) {
  char zero[256] = {0};
  TRY("bpf-map", syscall(SYS_bpf, 0, zero, sizeof zero));
  TRY("bpf-prog", syscall(SYS_bpf, 5, zero, sizeof zero));
  TRY("bpf-prog-by-id", syscall(SYS_bpf, 11, zero, sizeof zero));
  TRY("perf", syscall(SYS_perf_event_open, zero, 0, -1, -1, 0));
  TRY("io_uring_setup", syscall(425, 4, zero));
  TRY("io_uring_enter", syscall(426, 0, 1, 1, 0, 0, 0));
  TRY("io_uring_register", syscall(427, -1, 0, zero, 0));
  TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
  TRY("add_key", syscall(SYS_add_key, "user", "a", "b", 1, -4));
  TRY("request_key", syscall(SYS_request_key, "user", "a", NULL, -4));
  TRY("keyctl", syscall(SYS_keyctl, 0, -4, 0));
  TRY("fanotify", syscall(SYS_fanotify_init, 0, 0));
  TRY("init_module", syscall(SYS_init_module, zero, 10, ""));
  TRY("finit_module", syscall(SYS_finit_module, 0, "", 0));
  TRY("delete_module", syscall(SYS_delete_module, "loop", 0));
  TRY("kexec", syscall(SYS_kexec_load, 0, 0, 0, 0));
  TRY("reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0, NULL));
  TRY("swapon", syscall(SYS_swapon, "/tmp/s", 0));
  TRY("acct", syscall(SYS_acct, "/tmp/a"));
  TRY("syslog", syscall(SYS_syslog, 3, zero, 100));
  TRY("settimeofday", syscall(SYS_settimeofday, zero, NULL));
  TRY("clock_settime", syscall(SYS_clock_settime, 0, zero));
  TRY("clock_adjtime", syscall(SYS_clock_adjtime, 0, zero));
  TRY("sethostname", sethostname("pwned", 5));
  TRY("setdomainname", setdomainname("pwned", 5));
  TRY("vhangup", vhangup());
  TRY("quotactl", syscall(SYS_quotactl, 0, NULL, 0, NULL));
#ifdef SYS_iopl
  TRY("iopl", syscall(SYS_iopl, 3));
  TRY("ioperm", syscall(SYS_ioperm, 0, 1, 1));
  TRY("modify_ldt", syscall(SYS_modify_ldt, 0, zero, 16));
#endif
}

static void handles(void) {
  struct { unsigned bytes; int type; unsigned char data[128]; } handle = {.bytes = 128};
  int id;
  TRY("name_to_handle_at", syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &handle, &id, 0));
  /* The root folder of ext4 is inode 2: "shocker". */
  handle.bytes = 8; handle.type = 1; memset(handle.data, 0, 8); handle.data[0] = 2;
  int home = open("/sandbox", O_RDONLY);
  TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, home, &handle, O_RDONLY));
  uint64_t how[3] = {O_CREAT | O_RDWR, 04755, 0};
  TRY("openat2-setuid", syscall(437, AT_FDCWD, "/sandbox/x", how, sizeof how));
}

static void devices(void) {
  TRY("mknod-mem", mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1)));
  TRY("mknod-disk", mknod("/sandbox/disk", S_IFBLK | 0600, makedev(254, 0)));
  TRY("mknodat-kmsg", mknodat(AT_FDCWD, "/dev/shm/kmsg", S_IFCHR | 0600, makedev(1, 11)));
  TRY("open-mem", open("/dev/mem", O_RDONLY));
  TRY("open-kmem", open("/dev/kmem", O_RDONLY));
  TRY("open-port", open("/dev/port", O_RDONLY));
  TRY("open-kmsg", open("/dev/kmsg", O_RDONLY));
  TRY("open-disk", open("/dev/vda", O_RDONLY));
  TRY("open-kvm", open("/dev/kvm", O_RDWR));
  TRY("open-fuse", open("/dev/fuse", O_RDWR));
  TRY("open-loop", open("/dev/loop-control", O_RDWR));
  TRY("open-console", open("/dev/console", O_RDWR));
  TRY("open-tty0", open("/dev/tty0", O_RDWR));
  TRY("make-in-dev", open("/dev/new", O_CREAT | O_RDWR, 0600));
}

static void terminal(void) {
  char c = 'x';
  int disc = 3, sub = 2;
  TRY("TIOCSTI", ioctl(0, 0x5412UL, &c));
  TRY("TIOCSTI-high-bits", syscall(SYS_ioctl, 0, 0xdead00005412UL, &c));
  TRY("TIOCLINUX", ioctl(0, 0x541cUL, &sub));
  TRY("TIOCSETD", ioctl(0, 0x5423UL, &disc));
}

/* Set-id bits by every call that sets a mode. */
static void set_ids(void) {
  const char *file = "set-id";
  int fd = open(file, O_CREAT | O_RDWR, 0755);
  write(fd, "#!/bin/sh\nid\n", 13);
  TRY("chmod-suid", chmod(file, 04755));
  TRY("chmod-sgid", chmod(file, 02755));
  TRY("fchmod", fchmod(fd, 06755));
  TRY("fchmodat", fchmodat(AT_FDCWD, file, 04755, 0));
  TRY("fchmodat2", syscall(452, AT_FDCWD, file, 04755, 0));
  TRY("open-create", open("set-id-2", O_CREAT | O_RDWR, 04755));
  TRY("openat-tmpfile", openat(AT_FDCWD, ".", O_TMPFILE | O_RDWR, 04755));
  TRY("creat", creat("set-id-3", 04755));
  TRY("mknod", mknod("set-id-4", S_IFREG | 04755, 0));
  unsigned char capability[20] = {0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff};
  TRY("file-capability", setxattr(file, "security.capability", capability, 20, 0));
  TRY("trusted-xattr", setxattr(file, "trusted.overlay.opaque", "y", 1, 0));
  TRY("chown-root", chown(file, 0, 0));
  TRY("setfsattr", syscall(469, AT_FDCWD, file, capability, 20, 0));
}

/* Becoming somebody else. */
static void identities(void) {
  TRY("setuid", setuid(0));
  TRY("setresuid", setresuid(0, 0, 0));
  TRY("setgid", setgid(0));
  TRY("setgroups", syscall(SYS_setgroups, 0, NULL));
  unsigned head[2] = {0x20080522, 0}, data[6] = {~0u, ~0u, 0, ~0u, ~0u, 0};
  TRY("capset", syscall(SYS_capset, head, data));
  TRY("ambient", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0));
  TRY("securebits", prctl(PR_SET_SECUREBITS, 0, 0, 0, 0));
  int map;
  TRY("uid_map", (map = open("/proc/self/uid_map", O_WRONLY)) < 0 ? -1 : write(map, "0 0 1", 5));
  TRY("seccomp-off", prctl(PR_SET_SECCOMP, 0, 0, 0, 0));
  /* A filter of the agent's own that allows everything cannot loosen the one above it, nor can user notification. */
  struct sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  struct sock_fprog program = {1, allow};
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
  TRY("unshare-after-own-filter", unshare(CLONE_NEWUSER));
  struct sock_filter notify[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
                                 {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_unshare},
                                 {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
                                 {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  program = (struct sock_fprog){4, notify};
  /* Without the filter above it, this call would wait for the listener for ever. */
  alarm(5);
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  TRY("unshare-with-notification", unshare(CLONE_NEWUSER));
}

static void old_calls(void) {
#ifdef __x86_64__
  int status;
  pid_t child = fork();
  if (child == 0) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory");
    _exit(0);
  }
  waitpid(child, &status, 0);
  printf("int80 %s\n", WIFSIGNALED(status) ? "SIGSYS" : "done");
  child = fork();
  if (child == 0) { syscall(0x40000000 | 39); _exit(0); }
  waitpid(child, &status, 0);
  printf("x32 %s\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? "SIGSYS" : "done");
#else
  printf("int80 SIGSYS\nx32 SIGSYS\n");
#endif
}

int main(int argc, char **argv) {
  static const struct { const char *name; void (*run)(void); } groups[] = {
      {"mounts", mounts}, {"new-mounts", new_mounts}, {"namespaces", namespaces}, {"clone3", clone_three}, {"sockets", sockets},
      {"routes", routes}, {"surface", surface}, {"handles", handles}, {"devices", devices}, {"terminal", terminal},
      {"set-ids", set_ids}, {"identities", identities}, {"old-calls", old_calls}};
  for (size_t i = 0; argc > 1 && i < sizeof groups / sizeof *groups; i++)
    if (strcmp(argv[1], groups[i].name) == 0) { groups[i].run(); return 0; }
  fprintf(stderr, "no group %s\n", argc > 1 ? argv[1] : "");
  return 2;
}

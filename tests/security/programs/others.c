/* Attempts against other processes. Usage: others PID…. One line an attempt: "name:pid OUTCOME". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int target;
static void report(const char *name, long result) {
  printf("%s:%d %s\n", name, target, result < 0 ? strerrorname_np(errno) : "done");
  fflush(stdout);
}
#define TRY(name, call) do { errno = 0; report(name, (long)(call)); } while (0)

static int opened(const char *what, int flags) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", target, what);
  return open(path, flags);
}
static int linked(const char *what) {
  char path[64], text[256];
  snprintf(path, sizeof path, "/proc/%d/%s", target, what);
  return (int)readlink(path, text, sizeof text);
}

int main(int argc, char **argv) {
  char space[64];
  for (int i = 1; i < argc; i++) {
    target = atoi(argv[i]);
    struct iovec local = {space, sizeof space}, remote = {(void *)0x400000, sizeof space};
    TRY("ptrace-attach", ptrace(PTRACE_ATTACH, target, 0, 0));
    TRY("ptrace-seize", ptrace(PTRACE_SEIZE, target, 0, 0));
    TRY("vm-readv", syscall(SYS_process_vm_readv, target, &local, 1, &remote, 1, 0));
    TRY("vm-writev", syscall(SYS_process_vm_writev, target, &local, 1, &remote, 1, 0));
    TRY("kcmp", syscall(SYS_kcmp, target, getpid(), 0, 0, 0));
    int pidfd = (int)syscall(SYS_pidfd_open, target, 0);
    TRY("pidfd-getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0));
    TRY("madvise", syscall(SYS_process_madvise, pidfd, &remote, 1, MADV_PAGEOUT, 0));
    unsigned long nodes = 1;
    TRY("migrate-pages", syscall(SYS_migrate_pages, target, 8, &nodes, &nodes));
    TRY("mem", opened("mem", O_RDWR));
    TRY("environ", opened("environ", O_RDONLY));
    TRY("maps", opened("maps", O_RDONLY));
    TRY("fd", opened("fd", O_RDONLY | O_DIRECTORY));
    TRY("fd0", opened("fd/0", O_RDONLY));
    TRY("root", opened("root", O_RDONLY | O_DIRECTORY));
    TRY("cwd", opened("cwd", O_RDONLY | O_DIRECTORY));
    TRY("exe", linked("exe"));
    TRY("ns", linked("ns/mnt"));
    TRY("setns-net", opened("ns/net", O_RDONLY));
    struct rlimit limit = {0, 0};
    TRY("prlimit-set", syscall(SYS_prlimit64, target, RLIMIT_NOFILE, &limit, NULL));
    TRY("prlimit-get", syscall(SYS_prlimit64, target, RLIMIT_NOFILE, NULL, &limit));
    TRY("oom", opened("oom_score_adj", O_WRONLY));
    TRY("clear-refs", opened("clear_refs", O_WRONLY));
  }
  return 0;
}

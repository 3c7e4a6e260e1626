/* The canaries of the isolation self-test: system calls that an agent might try, made by a process forked from the zygote
 * under the very restrictions of the agent, without executing anything: no file, no search path and no loader that could
 * be tampered with. What to try comes with the request; what an answer means is judged outside. */
#include "probe.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>

enum { CANARIES_MAX = 64, CONNECT_MS = 200, NET_DEV_MAX = 16384 };
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* An errno is told apart from a value by its sign: what the kernel refused is negative. */
static int64_t outcome(int result) { return result < 0 ? -(int64_t)errno : 0; }

static int64_t open_as(const char *path, int flags) {
  int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
  if (fd < 0) return -(int64_t)errno;
  if (flags & O_CREAT) unlink(path);
  close(fd);
  return 0;
}

static int64_t make_node(const char *path) {
  if (mknod(path, S_IFCHR | 0600, 0) < 0) return -(int64_t)errno;
  unlink(path);
  return 0;
}

/* Refused or not, the command does nothing. A device that cannot be opened is told by 1. */
static int64_t control_device(const char *path) {
  char settings[256];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return 1;
  int64_t result = outcome(ioctl(fd, TCGETS, settings));
  close(fd);
  return result;
}

static int64_t connect_to(int fd, const void *address, socklen_t size) {
  if (fd < 0) return -(int64_t)errno;
  int64_t result = outcome(connect(fd, address, size));
  if (result == -EINPROGRESS) {
    struct pollfd list = {fd, POLLOUT, 0};
    int error = ETIMEDOUT;
    socklen_t length = sizeof error;
    if (poll(&list, 1, CONNECT_MS) == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    result = -(int64_t)error;
  }
  close(fd);
  return result;
}

static int64_t connect_inet(int type, const char *address, const char *port) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
  bool is_v6 = strchr(address, ':') != NULL;
  if (inet_pton(is_v6 ? AF_INET6 : AF_INET, address, is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1) return -EINVAL;
  int fd = socket(is_v6 ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return is_v6 ? connect_to(fd, &v6, sizeof v6) : connect_to(fd, &v4, sizeof v4);
}

static int64_t connect_unix(bool abstract, const char *name) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  size_t size = strlen(name);
  if (size == 0 || size > sizeof a.sun_path - 2) return -ENAMETOOLONG;
  memcpy(a.sun_path + abstract, name, size);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return connect_to(fd, &a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + 1));
}

/* Interfaces that could carry a packet: up, and not loopback. (Modules put interfaces that are down into every namespace.) */
static int64_t usable_interfaces(void) {
  static char text[NET_DEV_MAX];
  int file = open("/proc/self/net/dev", O_RDONLY | O_CLOEXEC), found = 0;
  ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
  int fd = size < 0 ? -1 : socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -(int64_t)errno;
  text[size] = 0;
  close(file);
  for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    struct ifreq request = {0};
    if (strchr(line, ':') == NULL || sscanf(line, " %15[^:]", request.ifr_name) != 1) continue;
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0 && request.ifr_flags & IFF_UP && !(request.ifr_flags & IFF_LOOPBACK)) found++;
  }
  close(fd);
  return found;
}

static int64_t network_cookie(void) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int64_t result = fd < 0 ? -(int64_t)errno : outcome(getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size));
  if (fd >= 0) close(fd);
  return result < 0 ? result : (int64_t)cookie;
}

/* Capabilities in any set. */
static int64_t capabilities(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{0}, {0}};
  if (syscall(SYS_capget, &head, data) < 0) return -(int64_t)errno;
  int found = 0;
  for (int i = 0; i < 2; i++) found += __builtin_popcount(data[i].effective | data[i].permitted | data[i].inheritable);
  for (unsigned long cap = 0; cap < 64; cap++)
    found += (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) > 0) + (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) > 0);
  return found;
}

/* 0 when every id is the agent's own. */
static int64_t other_ids(unsigned uid, unsigned gid) {
  unsigned id[6];
  if (getresuid(&id[0], &id[1], &id[2]) < 0 || getresgid(&id[3], &id[4], &id[5]) < 0) return -(int64_t)errno;
  int found = 0;
  for (int i = 0; i < 6; i++) found += id[i] != (i < 3 ? uid : gid);
  return found;
}

static int64_t become(unsigned uid) { return outcome((int)syscall(SYS_setresuid, uid, uid, uid)); }

static int64_t mount_over(const char *path) {
  if (mount("none", path, "tmpfs", 0, NULL) < 0) return -(int64_t)errno;
  umount2(path, MNT_DETACH);
  return 0;
}

static int64_t set_id_counts(const char *path) {
  struct statvfs fs;
  return statvfs(path, &fs) < 0 ? -(int64_t)errno : !(fs.f_flag & ST_NOSUID);
}

static int64_t process_limit(int resource) {
  struct rlimit limit;
  if (getrlimit((__rlimit_resource_t)resource, &limit) < 0) return -(int64_t)errno;
  return limit.rlim_max > INT64_MAX ? INT64_MAX : (int64_t)limit.rlim_max;
}

/* One canary: a word, then its arguments; a path or name is the last and may hold spaces. */
static int64_t attempt(char *text) {
  char *rest = strchr(text, ' ');
  if (rest != NULL) *rest++ = 0;
  else rest = text + strlen(text);
  int a = 0, b = 0, c = 0;
  sscanf(rest, "%d %d %d", &a, &b, &c);
  char *port = strrchr(rest, ' ');
  if (strcmp(text, "create") == 0) return open_as(rest, O_WRONLY | O_CREAT | O_EXCL);
  if (strcmp(text, "write") == 0) return open_as(rest, O_WRONLY);
  if (strcmp(text, "read") == 0) return open_as(rest, O_RDONLY);
  if (strcmp(text, "list") == 0) return open_as(rest, O_RDONLY | O_DIRECTORY);
  if (strcmp(text, "see") == 0) return outcome(access(rest, F_OK));
  if (strcmp(text, "node") == 0) return make_node(rest);
  if (strcmp(text, "device") == 0) return control_device(rest);
  if (strcmp(text, "set-id") == 0) return set_id_counts(rest);
  if (strcmp(text, "mount") == 0) return mount_over(rest);
  if (strcmp(text, "unix") == 0) return connect_unix(false, rest);
  if (strcmp(text, "abstract") == 0) return connect_unix(true, rest);
  if (strcmp(text, "socket") == 0) return outcome(socket(a, b | SOCK_CLOEXEC, c));
  if (strcmp(text, "tcp") == 0 || strcmp(text, "udp") == 0) {
    if (port == NULL) return -EINVAL;
    *port++ = 0;
    return connect_inet(text[0] == 't' ? SOCK_STREAM : SOCK_DGRAM, rest, port);
  }
  if (strcmp(text, "interfaces") == 0) return usable_interfaces();
  if (strcmp(text, "network") == 0) return network_cookie();
  if (strcmp(text, "trace") == 0) return outcome((int)ptrace(PTRACE_SEIZE, a, 0, 0));
  if (strcmp(text, "signal") == 0) return outcome(kill(a, 0));
  if (strcmp(text, "capabilities") == 0) return capabilities();
  if (strcmp(text, "ids") == 0) return other_ids((unsigned)strtoul(rest, NULL, 10), (unsigned)strtoul(port == NULL ? rest : port, NULL, 10));
  if (strcmp(text, "no-new-privileges") == 0) return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
  if (strcmp(text, "filter") == 0) return prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
  if (strcmp(text, "limit") == 0) return process_limit(a);
  if (strcmp(text, "become") == 0) return become((unsigned)strtoul(rest, NULL, 10));
  if (strcmp(text, "namespace") == 0) return outcome((int)syscall(SYS_unshare, 0x10000000 /* CLONE_NEWUSER */));
  return -ENOSYS;
}

_Noreturn void run_canaries(char **canaries) {
  char answer[CANARIES_MAX * 24];
  size_t size = 0;
  int count = 0;
  signal(SIGPIPE, SIG_IGN);
  for (; canaries[count] != NULL && count < CANARIES_MAX; count++)
    size += (size_t)snprintf(answer + size, sizeof answer - size, "%lld\n", (long long)attempt(canaries[count]));
  _exit(write_all(1, answer, size) < 0 ? 1 : 0);
}

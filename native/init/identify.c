/* Socket to inode by SOCK_DIAG, inode to processes by their descriptors, processes to executables and ancestors. */
#include "identify.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include "caps.h"
#include "freeze.h"
#include "frames.h"

enum {
  OWNERS_MAX = FDS_MAX,
  ANCESTORS_MAX = 64,
  RECENT = 16,
  AHEAD = 8,               /* descriptors tried behind the last one of a recent owner */
  PIDS_MAX = 16384,
  LINKS_MAX = 20000,       /* descriptors looked at for one question */
  SCAN_US = 5000,          /* processor time for one question */
  SCAN_AFTER_US = 1000,    /* time left for further owners once one is found */
  ANSWER_MAX = 256 << 10
};

static struct { pid_t pid; int fd; } recent[RECENT];
static uint32_t recent_at;
static int diag = -1;
struct scan { char wanted[40]; int64_t until; int links; bool complete; pid_t owner[OWNERS_MAX]; int fd[OWNERS_MAX]; int owners; };

/* Time on a processor: a busy machine makes a question take longer, not find less. */
static int64_t spent_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Inode of the socket with exactly this pair, 0 when there is none (any more). */
static uint32_t socket_inode(const struct inet_diag_req_v2 *question) {
  struct { struct nlmsghdr head; struct inet_diag_req_v2 body; } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST}, .body = *question};
  uint8_t buffer[8192];
  if (send(diag, &request, sizeof request, 0) < 0) return 0;
  ssize_t n = recv(diag, buffer, sizeof buffer, 0);
  const struct nlmsghdr *h = (const struct nlmsghdr *)buffer;
  if (n < (ssize_t)NLMSG_SPACE(sizeof(struct inet_diag_msg)) || h->nlmsg_type != SOCK_DIAG_BY_FAMILY) return 0;
  const struct inet_diag_msg *m = NLMSG_DATA(h);
  /* Without such a connection the kernel falls back to a listener, which is not the agent's end. */
  if (m->idiag_state == 10 /* TCP_LISTEN */ || m->id.idiag_sport != question->id.idiag_sport || m->id.idiag_dport != question->id.idiag_dport) return 0;
  return m->idiag_inode;
}

/* Descriptors are listed for the owner of a process; a process that is not dumpable belongs to the inner root. */
static DIR *open_descriptors(pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR *dir = opendir(path);
  if (dir != NULL || errno != EACCES) return dir;
  act_as_agent_on_files(false);
  return opendir(path);
}

static bool is_wanted(const struct scan *s, DIR *dir, const char *name) {
  char link[64];
  ssize_t n = readlinkat(dirfd(dir), name, link, sizeof link - 1);
  link[n > 0 ? n : 0] = 0;
  return strcmp(link, s->wanted) == 0;
}

/* Connections are looked at in the order in which they were made: of one process the next has the next descriptor mostly, while
 * thousands may be open before it. */
static int near_last(const struct scan *s, DIR *dir, pid_t pid) {
  char name[16];
  int last = -1;
  for (int i = 0; i < RECENT; i++)
    if (recent[i].pid == pid) last = recent[i].fd;
  for (int fd = last; last >= 0 && fd <= last + AHEAD; fd++) {
    snprintf(name, sizeof name, "%d", fd);
    if (is_wanted(s, dir, name)) return fd;
  }
  return -1;
}

/* The descriptor by which the process owns the socket, -1 when none was found. */
static int owns(struct scan *s, pid_t pid) {
  DIR *dir = open_descriptors(pid);
  int found = dir == NULL ? -1 : near_last(s, dir, pid);
  for (struct dirent *e; dir != NULL && found < 0 && (e = readdir(dir)) != NULL;) {
    if (e->d_name[0] == '.') continue;
    if (++s->links > LINKS_MAX || (s->links % 32 == 0 && spent_us() > s->until)) {
      s->complete = false;
      break;
    }
    if (is_wanted(s, dir, e->d_name)) found = atoi(e->d_name);
  }
  if (dir != NULL) closedir(dir);
  act_as_agent_on_files(true);
  return found;
}

static void consider(struct scan *s, pid_t pid) {
  for (int i = 0; i < s->owners; i++)
    if (s->owner[i] == pid) return;
  int fd = s->owners == OWNERS_MAX ? -1 : owns(s, pid);
  if (fd < 0) return;
  s->fd[s->owners] = fd;
  s->owner[s->owners++] = pid;
  int64_t sooner = spent_us() + SCAN_AFTER_US;
  if (s->owners == 1 && sooner < s->until) s->until = sooner;
}

static int newest_first(const void *a, const void *b) { return *(const pid_t *)b - *(const pid_t *)a; }

static void find_owners(struct scan *s, uint32_t inode) {
  static pid_t pids[PIDS_MAX];
  int count = 0;
  snprintf(s->wanted, sizeof s->wanted, "socket:[%u]", inode);
  s->until = spent_us() + SCAN_US;
  s->complete = true;
  for (int i = 0; i < RECENT; i++)
    if (recent[i].pid > 1) consider(s, recent[i].pid);
  DIR *dir = opendir("/proc");
  for (struct dirent *e; dir != NULL && count < PIDS_MAX && (e = readdir(dir)) != NULL;) {
    pid_t pid = atoi(e->d_name);
    if (pid > 1 && pid != getpid()) pids[count++] = pid;
  }
  if (dir != NULL) closedir(dir);
  qsort(pids, (size_t)count, sizeof *pids, newest_first);
  for (int i = 0; i < count && s->complete; i++) consider(s, pids[i]);
  for (int i = 0; i < s->owners; i++) {
    int at = 0;
    while (at < RECENT && recent[at].pid != s->owner[i]) at++;
    if (at == RECENT) at = (int)(recent_at++ % RECENT);
    recent[at].pid = s->owner[i];
    recent[at].fd = s->fd[i];
  }
}

/* pid and path of the executable. */
static void put_process(struct writer *w, pid_t pid) {
  static const char deleted[] = " (deleted)";
  char link[32], path[4097];
  struct stat exe, named;
  snprintf(link, sizeof link, "/proc/%d/exe", pid);
  ssize_t n = readlink(link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  size_t length = strlen(path), tail = sizeof deleted - 1;
  /* A file may really be called so: only then does the whole name lead to the same inode. */
  if (length > tail && strcmp(path + length - tail, deleted) == 0 && !(stat(link, &exe) == 0 && stat(path, &named) == 0 && named.st_ino == exe.st_ino && named.st_dev == exe.st_dev))
    path[length - tail] = 0;
  put_u32(w, (uint32_t)pid);
  put_string(w, path);
}

static void put_ancestors(struct writer *w, pid_t pid) {
  pid_t chain[ANCESTORS_MAX];
  struct proc_entry entry;
  int count = 0;
  while (count < ANCESTORS_MAX && read_process(pid, &entry) && entry.parent > 1) chain[count++] = pid = entry.parent;
  put_u8(w, (uint8_t)count);
  for (int i = 0; i < count; i++) put_process(w, chain[i]);
}

/* This process acts on files as the agent: what the agent may not read has no identity. */
static int open_executable(pid_t pid) {
  char link[32];
  snprintf(link, sizeof link, "/proc/%d/exe", pid);
  return open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

static int answer(struct channel *c) {
  static uint8_t space[ANSWER_MAX];
  struct writer w = {space, 0, sizeof space, false};
  struct reader r = {c->input, c->input + c->input_size, false};
  struct scan s = {.complete = true};
  int fd[OWNERS_MAX], fds = 0;
  struct inet_diag_req_v2 question = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0U, .id = {.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
  uint8_t family = get_u8(&r);
  struct bytes local = get_bytes(&r);
  question.id.idiag_sport = htons(get_u16(&r));
  struct bytes remote = get_bytes(&r);
  question.id.idiag_dport = htons(get_u16(&r));
  uint32_t size = family == 4 ? 4 : 16;
  if (r.bad || c->type != FRAME_IDENTIFY || local.size != size || remote.size != size) return -1;
  question.sdiag_family = family == 4 ? AF_INET : AF_INET6;
  memcpy(question.id.idiag_src, local.data, size);
  memcpy(question.id.idiag_dst, remote.data, size);
  uint32_t inode = socket_inode(&question);
  if (inode != 0) find_owners(&s, inode);
  put_u8(&w, s.complete);
  put_u8(&w, (uint8_t)s.owners);
  for (int i = 0; i < s.owners; i++) {
    int exe = open_executable(s.owner[i]);
    put_process(&w, s.owner[i]);
    put_u8(&w, exe >= 0);
    put_ancestors(&w, s.owner[i]);
    if (exe >= 0) fd[fds++] = exe;
  }
  int result = w.bad ? -1 : channel_send(c, FRAME_OK, c->id, w.data, w.size, fd, fds);
  for (int i = 0; i < fds; i++) close(fd[i]);
  return result;
}

static void serve(struct channel *c) {
  int got;
  while ((got = channel_receive(c)) > 0) {
    if (answer(c) < 0) break;
    channel_next(c);
  }
  if (got != 0) channel_close(c);
}

_Noreturn void identify_main(int socket, struct bytes unused) {
  (void)unused;
  struct channel c = {.fd = -1};
  struct timeval limit = {.tv_sec = 1};
  const int keep[] = {0, 1, 2, socket};
  close_except(keep, 4);
  diag = (int)syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  setsockopt(diag, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (diag < 0 || keep_capabilities(box.inside_root ? CAPS_IDENTIFIER : 1ULL << 19) < 0) _exit(1);
  act_as_agent_on_files(true);
  for (;;) {
    struct pollfd list[2] = {{socket, POLLIN, 0}, {c.fd, POLLIN | (c.first != NULL ? POLLOUT : 0), 0}};
    if (poll(list, 2, -1) < 0) continue;
    if (list[0].revents != 0) {
      char byte;
      int fd[FDS_MAX], fds;
      struct iovec iov = {&byte, 1};
      ssize_t n = receive_fds(socket, &iov, 1, fd, &fds, 0);
      if (n <= 0) _exit(0);
      if (fds == 1) {
        channel_close(&c);
        c.fd = fd[0];
        c.limit = FRAME_MAX;
      }
    } else if (list[1].revents & POLLOUT && channel_flush(&c) < 0) channel_close(&c);
    else if (list[1].revents != 0) serve(&c);
  }
}

/* The outer role: reads the plan, makes the namespaces, writes identities, does what needs the caller's privilege,
 * reports on descriptor 3 and exits. Never runs anything of the sandbox's. */
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "bpf.h"
#include "frames.h"
#include "root.h"
#include "sync.h"

enum { ANSWER = 3, LAUNCH_SECONDS = 10, CGROUP2_MAGIC = 0x63677270 };
struct sandbox box;
static pid_t child;

static bool privileged(void) {
  struct { uint32_t version; int pid; } head = {0x20080522, 0};
  struct { uint32_t effective, permitted, inheritable; } caps[2];
  return syscall(SYS_capget, &head, caps) == 0 && (caps[0].effective & 1U << 21) /* CAP_SYS_ADMIN */ && (caps[0].effective & 1U << 7) /* CAP_SETUID */;
}

static int read_plan(void) {
  uint8_t *data = malloc(PLAN_MAX + 1);
  size_t size = 0;
  if (data == NULL) return failed("plan", "memory");
  while (size <= PLAN_MAX) {
    ssize_t n = read(0, data + size, PLAN_MAX + 1 - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("plan", "read");
    if (n == 0) break;
    size += (size_t)n;
  }
  errno = EINVAL;
  if (size > PLAN_MAX) return failed("plan", "too large");
  return decode_plan(data, size, &box.plan) ? 0 : failed("plan", "malformed");
}

/* The socket is bound here, since init's ids may not reach the folder; init listens on it, so peers see init. */
static int bind_control(void) {
  struct plan *p = &box.plan;
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  struct stat st;
  if (lstat(p->control_folder, &st) < 0) return failed("control-folder", p->control_folder);
  errno = EPERM;
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0) return failed("control-folder", "must be a folder of mode 0700 and the caller's own");
  errno = ENAMETOOLONG;
  if (strlen(p->control_socket) > 100) return failed("control-socket", p->control_socket);
  strcpy(a.sun_path, p->control_socket);
  unlink(a.sun_path);
  box.control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (box.control < 0 || bind(box.control, (struct sockaddr *)&a, sizeof a) < 0) return failed("control-socket", p->control_socket);
  return 0;
}

static int open_in(const char *folder, const char *name, int flags) {
  char path[512];
  snprintf(path, sizeof path, "%s/workload/%s", folder, name);
  int fd = open(path, flags | O_CLOEXEC);
  return fd < 0 ? failed("freezer", path) : fd;
}

/* A cgroup below the sandbox's own, so that init can freeze the workload without itself. Its files are opened with the
 * caller's rights: the kernel checks those of the opener. */
static int open_freezer(void) {
  struct plan *p = &box.plan;
  bool v2 = p->freezer == FREEZER_V2;
  char path[512];
  box.freeze_file = box.freeze_state = box.freeze_procs = -1;
  if (p->freezer == FREEZER_SIGNALS) return 0;
  snprintf(path, sizeof path, "%s/workload", p->freezer_folder);
  if (mkdir(path, 0755) < 0 && errno != EEXIST) return failed("freezer", path);
  box.freeze_file = open_in(p->freezer_folder, v2 ? "cgroup.freeze" : "freezer.state", O_WRONLY);
  box.freeze_state = open_in(p->freezer_folder, v2 ? "cgroup.events" : "freezer.state", O_RDONLY);
  box.freeze_procs = open_in(p->freezer_folder, "cgroup.procs", O_WRONLY);
  return box.freeze_file < 0 || box.freeze_state < 0 || box.freeze_procs < 0 ? -1 : 0;
}

/* The first cgroup v2 folder among the plan's: the child is born in it, which spares a migration. */
static int birth_cgroup(uint32_t *index) {
  for (uint32_t i = 0; i < box.plan.cgroups; i++) {
    char folder[512];
    struct statfs fs;
    snprintf(folder, sizeof folder, "%s", box.plan.cgroup[i]);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) continue;
    *slash = 0;
    if (statfs(folder, &fs) == 0 && fs.f_type == CGROUP2_MAGIC) {
      *index = i;
      return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
  }
  *index = UINT32_MAX;
  return -1;
}

static pid_t clone_into(uint64_t flags, int cgroup) {
  struct clone_args args = {.flags = flags | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0), .exit_signal = SIGCHLD, .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0};
  return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static int write_map(const char *name, const struct range *map, uint32_t ranges) {
  char path[64], text[RANGES_MAX * 40] = "";
  for (uint32_t i = 0; i < ranges; i++) {
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%u %u %u\n", map[i].inside, map[i].outside, map[i].count);
  }
  snprintf(path, sizeof path, "/proc/%d/%s", child, name);
  return write_file(path, text) < 0 ? failed(name, text) : 0;
}

static int write_identity(void) {
  struct plan *p = &box.plan;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/setgroups", child);
  if (p->deny_setgroups && write_file(path, "deny") < 0) return failed("setgroups", path);
  if (write_map("uid_map", p->uid_map, p->uid_ranges) < 0) return -1;
  return write_map("gid_map", p->gid_map, p->gid_ranges);
}

static int join_cgroups(uint32_t born_in) {
  char pid[16];
  snprintf(pid, sizeof pid, "%d", child);
  for (uint32_t i = 0; i < box.plan.cgroups; i++)
    if (i != born_in && write_file(box.plan.cgroup[i], pid) < 0) return failed("cgroup", box.plan.cgroup[i]);
  return 0;
}

/* A user namespace whose only purpose is its map: the caller's ids on disk appear as the agent's. */
static int idmap_namespace(const struct step *s) {
  const struct plan *p = &box.plan;
  struct range uid = {s->host_uid, outside_id(p->uid_map, p->uid_ranges, p->uid), 1};
  struct range gid = {s->host_gid, outside_id(p->gid_map, p->gid_ranges, p->gid), 1};
  char path[64];
  pid_t real = child;
  pid_t holder = clone_into(CLONE_NEWUSER, -1);
  if (holder == 0)
    for (;;) pause();
  if (holder < 0) return failed("idmap-namespace", s->source);
  child = holder;
  int userns = write_map("uid_map", &uid, 1) < 0 || write_map("gid_map", &gid, 1) < 0 ? -1 : 0;
  child = real;
  snprintf(path, sizeof path, "/proc/%d/ns/user", holder);
  if (userns == 0 && (userns = open(path, O_RDONLY | O_CLOEXEC)) < 0) failed("idmap-namespace", s->source);
  kill(holder, SIGKILL);
  waitpid(holder, NULL, 0);
  return userns;
}

/* The sandbox's own: the ids of an image on disk are those inside, whatever block of host ids the sandbox has. */
static int sandbox_namespace(const struct step *s) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  int userns = open(path, O_RDONLY | O_CLOEXEC);
  return userns < 0 ? failed("idmap-namespace", s->source) : userns;
}

static bool same_map(const struct step *a, const struct step *b) {
  return a->idmap == b->idmap && a->host_uid == b->host_uid && a->host_gid == b->host_gid;
}

static int send_trees(int sync) {
  struct step *same = NULL;
  int userns = -1;
  for (uint32_t i = 0; i < box.plan.steps; i++) {
    struct step *s = &box.plan.step[i];
    if (s->kind != STEP_VOLUME || !s->idmap) continue;
    if (same == NULL || !same_map(same, s)) {
      if (userns >= 0) close(userns);
      if ((userns = s->idmap == IDMAP_SANDBOX ? sandbox_namespace(s) : idmap_namespace(s)) < 0) return -1;
      same = s;
    }
    if (open_tree_for(s, userns) < 0) return -1;
    if (sync_send(sync, SYNC_TREE, i, NULL, 0, &s->tree, 1) < 0) return failed("volume-send", s->source);
    close(s->tree);
  }
  if (userns >= 0) close(userns);
  return 0;
}

/* Binds and volumes without an id map are cloned before the child exists and reach it by inheritance. */
static int open_trees(void) {
  for (uint32_t i = 0; i < box.plan.steps && box.privileged; i++) {
    struct step *s = &box.plan.step[i];
    if ((s->kind == STEP_BIND || (s->kind == STEP_VOLUME && !s->idmap)) && open_tree_for(s, -1) < 0) return -1;
  }
  return 0;
}

static int link_sockets(int sync, const struct sync *m) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/net", child);
  int netns = open(path, O_RDONLY | O_CLOEXEC);
  if (netns < 0) return failed("sk-lookup-netns", path);
  int link = attach_lookup(m->fd, m->fds, netns);
  close(netns);
  for (int i = 0; i < m->fds; i++) close(m->fd[i]);
  if (link < 0) return -1;
  int result = sync_send(sync, SYNC_LINK, 0, NULL, 0, &link, 1);
  close(link);
  return result < 0 ? failed("sk-lookup-send", "") : 0;
}

static uint64_t start_ticks(void) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  char *at = strrchr(text, ')');
  for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
  return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

static int answer(uint16_t type, struct writer *w) {
  uint8_t head[FRAME_HEAD];
  frame_head(head, w->size, type, 0, 0, 0);
  return w->bad || write_all(ANSWER, head, sizeof head) < 0 || write_all(ANSWER, w->data, w->size) < 0 ? -1 : 0;
}

static bool message_waits(int sync) {
  struct pollfd list = {sync, POLLIN, 0};
  return poll(&list, 1, 0) > 0 && list.revents & POLLIN;
}

static int follow(int sync) {
  static struct sync m;
  for (;;) {
    /* Init that ends without having read everything is a reset connection, which is told before the message that it sent. */
    if (sync_receive(sync, &m) < 0 && (errno != ECONNRESET || sync_receive(sync, &m) < 0))
      return failed("init", "ended before it was ready");
    /* Init may have failed meanwhile: then its message, sent before it ended, says what went wrong first. */
    if (m.type == SYNC_SOCKETS && link_sockets(sync, &m) < 0 && !message_waits(sync)) return -1;
    if (m.type == SYNC_ERROR && m.size == sizeof failure) {
      memcpy(&failure, m.data, sizeof failure);
      return -1;
    }
    if (m.type == SYNC_READY) break;
  }
  static uint8_t space[SYNC_MAX + 64];
  struct writer w = {space, 0, sizeof space, false};
  put_u32(&w, (uint32_t)child);
  put_u64(&w, start_ticks());
  if (!w.bad) memcpy(space + w.size, m.data, m.size);
  w.size += m.size;
  return answer(FRAME_READY, &w) < 0 ? failed("answer", "") : 0;
}

static int run(void) {
  int pair[2];
  uint32_t born_in;
  struct rlimit files;
  if (read_plan() < 0) return -1;
  box.privileged = privileged();
  box.inside_root = maps_inside(box.plan.uid_map, box.plan.uid_ranges, 0) && maps_inside(box.plan.gid_map, box.plan.gid_ranges, 0);
  box.host_uid = OVERFLOW_ID;
  for (uint32_t i = 0; i < box.plan.uid_ranges; i++) {
    const struct range *r = &box.plan.uid_map[i];
    if (geteuid() >= r->outside && geteuid() - r->outside < r->count) box.host_uid = r->inside + (geteuid() - r->outside);
  }
  umask(077);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (bind_control() < 0 || open_freezer() < 0 || open_trees() < 0) return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return failed("socketpair", "");
  int cgroup = birth_cgroup(&born_in);
  child = clone_into(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, cgroup);
  if (child < 0) return failed("clone", cgroup >= 0 ? box.plan.cgroup[born_in] : "namespaces");
  if (child == 0) {
    close(pair[0]);
    close(ANSWER);
    _exit(init_main(pair[1]));
  }
  close(pair[1]);
  if (write_identity() < 0 || join_cgroups(born_in) < 0 || send_trees(pair[0]) < 0) return -1;
  if (sync_send(pair[0], SYNC_GO, 0, NULL, 0, NULL, 0) < 0) return failed("init", "ended at once");
  return follow(pair[0]);
}

static void on_alarm(int signal) {
  (void)signal;
  if (child > 0) kill(child, SIGKILL);
  _exit(2);
}

int launch(void) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGALRM, on_alarm);
  alarm(LAUNCH_SECONDS);
  if (run() == 0) return 0;
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  if (box.control > 0) unlink(box.plan.control_socket);
  uint8_t space[1024];
  struct writer w = {space, 0, sizeof space, false};
  put_string(&w, failure.step);
  put_u32(&w, (uint32_t)failure.error);
  put_string(&w, failure.detail);
  answer(FRAME_ERROR, &w);
  return 1;
}

/* Agent processes: stdio, the dialogue with the zygote, exact exit statuses, helpers of init. */
#include "spawn.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "caps.h"
#include "control.h"
#include "fds.h"
#include "freeze.h"
#include "frames.h"
#include "identify.h"
#include "zygote.h"

enum { ZYGOTE_START_SECONDS = 4, DEATH_MS = 20, FORK_MS = 5000, REAPS_A_TURN = 256 };
struct spawn {
  bool used, main, terminal, forked, forgotten;
  int64_t since;
  uint32_t id, handle;
  pid_t pid;
  int report, fd[MAIN_FDS], fds;
};
struct agent { uint32_t handle; pid_t pid; };
struct helper { pid_t pid; int socket; };

struct main_process main_process;
static struct spawn spawns[SPAWNS_MAX];
static struct agent agents[AGENTS_MAX];
static struct helper zygote = {-1, -1}, identifier = {-1, -1};
static struct bytes restrictions;
static int agent_count;
static uint32_t next_handle = 1;

bool is_helper(pid_t pid) { return pid == zygote.pid || pid == identifier.pid; }

bool main_begun(void) {
  bool begun = main_process.started;
  for (int i = 0; i < SPAWNS_MAX; i++) begun |= spawns[i].used && spawns[i].main;
  return begun;
}

static bool lives(struct helper *h);

static int start_helper(struct helper *h, void (*run)(int, struct bytes), struct bytes argument) {
  int pair[2];
  if (h->socket >= 0) close(h->socket);
  h->socket = -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return failed("helper", "socketpair");
  h->pid = fork();
  if (h->pid == 0) {
    explicit_bzero((void *)box.plan.nonce, NONCE_SIZE);
    run(pair[1], argument);
  }
  close(pair[1]);
  if (h->pid < 0) {
    close(pair[0]);
    return failed("helper", "fork");
  }
  h->socket = pair[0];
  return 0;
}

int zygote_start(struct bytes payload, struct writer *layers) {
  struct timeval limit = {.tv_sec = ZYGOTE_START_SECONDS};
  char text[2049];
  if (payload.data != restrictions.data) {
    uint8_t *copy = malloc(payload.size + 1);
    if (copy == NULL) return failed("zygote", "memory");
    memcpy(copy, payload.data, payload.size);
    free((void *)(uintptr_t)restrictions.data);
    restrictions = (struct bytes){copy, payload.size};
  }
  if (start_helper(&zygote, zygote_main, restrictions) < 0) return -1;
  setsockopt(zygote.socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ssize_t n = recv(zygote.socket, text, sizeof text, 0);
  if (n == sizeof failure && text[0] != 0) memcpy(&failure, text, sizeof failure);
  if (n < 1 || text[0] != 0) {
    close(zygote.socket);
    zygote.socket = -1;
    return failed("zygote", "ended before it was ready");
  }
  if (layers != NULL && layers->capacity - layers->size >= (size_t)n) {
    memcpy(layers->data + layers->size, text + 1, (size_t)n - 1);
    layers->size += (size_t)n - 1;
  }
  return 0;
}

int identifier_start(void) { return start_helper(&identifier, identify_main, (struct bytes){NULL, 0}); }

int identifier_attach(int socket) {
  struct iovec iov = {"", 1};
  if (!lives(&identifier) && identifier_start() < 0) return -1;
  return send_fds(identifier.socket, &iov, 1, &socket, 1, MSG_DONTWAIT) < 0 ? failed("identifier", "send") : 0;
}

/* Host ends go to fd, agent ends to agent[0..2]. Made as the agent, who then may reopen them through /dev/stdout. */
static int make_stdio(struct spawn *s, int *agent, uint16_t rows, uint16_t columns) {
  if (s->terminal) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    int unlock = 0, master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0) return failed("pty", "/dev/pts/ptmx");
    s->fd[s->fds++] = master;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0) return failed("pty", "set up");
    agent[0] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (agent[0] < 0) return failed("pty", "slave");
    agent[1] = agent[2] = agent[0];
    return 0;
  }
  for (int i = 0; i < 3; i++) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return failed("pipe", "");
    agent[i] = ends[i == 0 ? 0 : 1];
    s->fd[s->fds++] = ends[i == 0 ? 1 : 0];
  }
  return 0;
}

static void forget(struct spawn *s, bool keep_stdio) {
  if (s->report >= 0) close(s->report);
  for (int i = 0; i < s->fds && !keep_stdio; i++) close(s->fd[i]);
  s->used = false;
}

static int hand_over(struct spawn *s, struct bytes request, const int *agent) {
  int report[2], spec = memfd_create("spawn", MFD_CLOEXEC);
  if (spec < 0 || write_all(spec, request.data, request.size) < 0) return failed("spawn", "request");
  if (pipe2(report, O_CLOEXEC | O_NONBLOCK) < 0) return failed("spawn", "pipe");
  s->report = report[0];
  const int fd[SPAWN_FDS] = {spec, agent[0], agent[1], agent[2], report[1]};
  struct iovec iov = {&s->handle, sizeof s->handle};
  int result = send_fds(zygote.socket, &iov, 1, fd, SPAWN_FDS, MSG_DONTWAIT) < 0 ? failed("spawn", "zygote") : 0;
  close(spec);
  close(report[1]);
  return result;
}

int spawn_begin(uint32_t id, bool main, struct bytes request) {
  struct spawn *s = spawns;
  int agent[3] = {-1, -1, -1};
  while (s < spawns + SPAWNS_MAX && s->used) s++;
  errno = EAGAIN;
  if (s == spawns + SPAWNS_MAX || agent_count + SPAWNS_MAX >= AGENTS_MAX) return failed("spawn", "too many processes at once");
  if (!lives(&zygote) && zygote_start(restrictions, NULL) < 0) return -1;
  struct reader r = {request.data, request.data + request.size, false};
  *s = (struct spawn){.used = true, .main = main, .id = id, .handle = next_handle++, .report = -1, .since = monotonic_ms()};
  s->terminal = get_u8(&r) == STDIO_PTY;
  uint16_t rows = get_u16(&r), columns = get_u16(&r);
  act_as_agent_on_files(true);
  int result = make_stdio(s, agent, rows, columns);
  act_as_agent_on_files(false);
  if (result == 0) result = hand_over(s, request, agent);
  for (int i = 0; i < (s->terminal ? 1 : 3); i++)
    if (agent[i] >= 0) close(agent[i]);
  if (result < 0) forget(s, false);
  return result;
}

static struct spawn *spawn_of(uint32_t handle, pid_t pid) {
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (s->used && (handle != 0 ? s->handle == handle : s->forked && s->pid == pid)) return s;
  return NULL;
}

static int agent_index(uint32_t handle, pid_t pid) {
  for (int i = 0; i < agent_count; i++)
    if (handle != 0 ? agents[i].handle == handle : agents[i].pid == pid) return i;
  return -1;
}

/* The report pipe ended (the program runs) or tells why not; answers the request. False while neither is so. */
static bool finish(struct spawn *s) {
  struct spawn_failure f;
  ssize_t n = read(s->report, &f, sizeof f);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n != 0) {
    int at = agent_index(s->handle, 0);
    if (at >= 0) agents[at] = agents[--agent_count];
    if (n == sizeof f) f.step[sizeof f.step - 1] = 0;
    errno = n == sizeof f ? f.error : EIO;
    if (!s->forgotten) control_error(s->id, n == sizeof f ? f.step : "spawn", "");
    forget(s, false);
    return true;
  }
  uint8_t space[16];
  struct writer w = {space, 0, sizeof space, false};
  put_u32(&w, s->handle);
  put_u32(&w, (uint32_t)s->pid);
  if (s->main) {
    main_process = (struct main_process){.handle = s->handle, .pid = s->pid, .fds = s->fds, .terminal = s->terminal, .started = true};
    memcpy(main_process.fd, s->fd, sizeof s->fd);
  }
  if (!s->forgotten) control_answer(s->id, &w, s->fd, s->fds);
  else if (!s->main) kill(-s->pid, SIGKILL);
  forget(s, s->main);
  return true;
}

static void fail_spawn(struct spawn *s, int error) {
  errno = error;
  if (!s->forgotten) control_error(s->id, "fork", "");
  forget(s, false);
}

static void read_answers(void) {
  struct spawn_answer a;
  while (zygote.socket >= 0 && recv(zygote.socket, &a, sizeof a, MSG_DONTWAIT) == sizeof a) {
    struct spawn *s = spawn_of(a.sequence, 0);
    if (s == NULL || s->forked) continue;
    if (a.pid < 0) {
      fail_spawn(s, -a.pid);
      continue;
    }
    s->forked = true;
    s->pid = a.pid;
    agents[agent_count++] = (struct agent){s->handle, a.pid};
  }
}

bool spawn_waits(void) {
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (s->used && !s->forked) return true;
  return false;
}

static void helper_ended(struct helper *h) {
  h->pid = -1;
  if (h == &zygote) {
    read_answers();
    for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
      if (s->used && !s->forked) fail_spawn(s, EIO);
  }
  close(h->socket);
  h->socket = -1;
}

/* Also asks the kernel: who notices the death of a helper asks for the next one before init has reaped the last. */
static bool lives(struct helper *h) {
  struct pollfd end = {h->socket, 0, 0};
  if (h->pid < 0) return false;
  if (poll(&end, 1, 0) <= 0 || !(end.revents & (POLLHUP | POLLERR))) return true;
  for (int waited = 0; waited < DEATH_MS; waited++) {
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)h->pid, &info, WEXITED | WNOHANG) == 0 && info.si_pid == h->pid) {
      helper_ended(h);
      return false;
    }
    pause_ms(1);
  }
  return true;
}

static void report_exit(uint32_t handle, const siginfo_t *info) {
  bool signaled = info->si_code != CLD_EXITED;
  uint8_t space[16];
  struct writer w = {space, 0, sizeof space, false};
  put_u32(&w, handle);
  put_u8(&w, signaled);
  put_u32(&w, (uint32_t)info->si_status);
  if (main_process.started && handle == main_process.handle) {
    main_process.exited = true;
    main_process.signaled = signaled;
    main_process.status = (uint32_t)info->si_status;
  }
  control_event(FRAME_EXIT, &w);
}

bool reap(void) {
  for (int reaped = 0; reaped < REAPS_A_TURN; reaped++) {
    siginfo_t info = {.si_pid = 0};
    /* WNOWAIT first: while a zombie stays, its pid cannot be given to another process. */
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) return false;
    pid_t pid = info.si_pid;
    int at = agent_index(0, pid);
    if (at < 0 && !is_helper(pid) && spawn_waits()) {
      read_answers();
      at = agent_index(0, pid);
      /* Perhaps a child whose pid the zygote has not told yet: the answer wakes the loop. */
      if (at < 0 && spawn_waits()) return false;
    }
    struct spawn *s = spawn_of(0, pid);
    if (s != NULL) {
      finish(s);
      at = agent_index(0, pid);
    }
    waitid(P_PID, (id_t)pid, &info, WEXITED);
    if (pid == zygote.pid) helper_ended(&zygote);
    else if (pid == identifier.pid) helper_ended(&identifier);
    else if (at >= 0) {
      uint32_t handle = agents[at].handle;
      agents[at] = agents[--agent_count];
      report_exit(handle, &info);
    }
  }
  return true;
}

int spawn_signal(uint32_t handle, int number, bool group) {
  struct proc_entry entry;
  int at = agent_index(handle, 0);
  errno = ESRCH;
  if (at < 0 || handle == 0) return failed("signal", "the process has ended");
  pid_t target = agents[at].pid;
  if (group) target = read_process(target, &entry) && entry.foreground > 1 ? -entry.foreground : -target;
  return kill(target, number) < 0 ? failed("signal", "") : 0;
}

void spawn_host_gone(void) {
  struct proc_entry *list;
  int count = list_processes(&list);
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (s->used) s->forgotten = true;
  for (int i = 0; i < agent_count; i++) {
    if (main_process.started && agents[i].handle == main_process.handle) continue;
    struct spawn *s = spawn_of(agents[i].handle, 0);
    if (s != NULL && s->main) continue;
    kill(agents[i].pid, SIGKILL);
    /* The process leads a session of its own; what it started there ends with it. */
    for (int j = 0; j < count; j++)
      if (list[j].session == agents[i].pid) kill(list[j].pid, SIGKILL);
  }
  bool main_runs = main_process.started && !main_process.exited;
  for (int waited = 0; waited < DEATH_MS && agent_count > (main_runs ? 1 : 0); waited++) {
    pause_ms(1);
    reap();
  }
}

void spawn_watch(int64_t now, bool frozen) {
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (frozen) s->since = now;
    else if (s->used && !s->forked && now - s->since > FORK_MS && zygote.pid > 0) {
      kill(zygote.pid, SIGKILL);
      return;
    }
}

int spawn_poll(struct pollfd *list) {
  int count = 0;
  if (zygote.socket >= 0) list[count++] = (struct pollfd){zygote.socket, POLLIN, 0};
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (s->used && s->forked) list[count++] = (struct pollfd){s->report, POLLIN, 0};
  return count;
}

bool spawn_events(const struct pollfd *list, int count) {
  bool any = false;
  for (int i = 0; i < count; i++) any |= list[i].revents != 0;
  if (!any) return false;
  read_answers();
  for (struct spawn *s = spawns; s < spawns + SPAWNS_MAX; s++)
    if (s->used && s->forked) finish(s);
  return reap();
}

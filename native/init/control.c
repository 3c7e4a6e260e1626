/* The control socket: attachment, requests, freezing without a host, the end. One thread, one poll loop. */
#include "control.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "caps.h"
#include "freeze.h"
#include "frames.h"
#include "restrict.h"
#include "spawn.h"

enum { STRANGERS_MAX = 4, HELLO_MS = 5000, HELLO_MAX = 4096, FREEZE_AGAIN_MS = 1000, STATE_MAX = 256 << 10, LAYERS_MAX = 6144, SPEC_MAX = 2 << 20 };
enum { FROZEN_ABSENT = 1, FROZEN_ASKED = 2 };
enum { STATE_FRESH, STATE_CONFIRMED, STATE_MAIN_STARTED, STATE_MAIN_EXITED };

static struct channel host = {.fd = -1}, strangers[STRANGERS_MAX];
static uint8_t layer_space[LAYERS_MAX];
static struct writer layers = {layer_space, 0, sizeof layer_space, false};
static uint8_t layer_count;
static uint8_t *saved;
static size_t saved_size;
static bool confirmed, ending;
static unsigned frozen;
static int64_t orphan_at, end_at = INT64_MAX, freeze_again_at = INT64_MAX;
static int children = -1;

static int set_frozen(unsigned reasons) {
  unsigned before = frozen;
  bool on = reasons != 0, settled = freeze_again_at == INT64_MAX;
  frozen = reasons;
  /* Before anything of the agent's exists there is nothing to freeze. */
  if (!confirmed || ((before != 0) == on && (settled || !on))) return 0;
  int result = freeze_workload(on);
  freeze_again_at = result < 0 && on ? monotonic_ms() + FREEZE_AGAIN_MS : INT64_MAX;
  if (result < 0 && !on) frozen = before;
  return result;
}

/* A workload that kept running (it may send itself SIGCONT without end) is tried again. */
static void freeze_again(int64_t now) {
  if (now < freeze_again_at) return;
  freeze_again_at = freeze_workload(true) < 0 ? monotonic_ms() + FREEZE_AGAIN_MS : INT64_MAX;
}

static void detach(void) {
  if (host.fd < 0) return;
  channel_close(&host);
  orphan_at = monotonic_ms() + (int64_t)box.plan.orphan_limit_ms;
  spawn_host_gone();
  failure.step[0] = 0;
  set_frozen(frozen | FROZEN_ABSENT);
}

static void host_send(uint16_t type, uint32_t id, const struct writer *w, const int *fd, int fds) {
  if (host.fd < 0) return;
  /* A host that does not read is as good as gone; shutting down lets the loop notice in one place. */
  if (w->bad || channel_send(&host, type, id, w->data, w->size, fd, fds) < 0) shutdown(host.fd, SHUT_RDWR);
}

void control_answer(uint32_t id, const struct writer *w, const int *fd, int fds) { host_send(FRAME_OK, id, w, fd, fds); }
void control_event(uint16_t type, const struct writer *w) { host_send(type, 0, w, NULL, 0); }

void control_error(uint32_t id, const char *step, const char *detail) {
  uint8_t space[512];
  struct writer w = {space, 0, sizeof space, false};
  int error = errno;
  put_string(&w, step);
  put_u32(&w, (uint32_t)error);
  put_string(&w, detail);
  host_send(FRAME_ERROR, id, &w, NULL, 0);
}

static uint8_t state(void) {
  if (main_process.started) return main_process.exited ? STATE_MAIN_EXITED : STATE_MAIN_STARTED;
  return confirmed ? STATE_CONFIRMED : STATE_FRESH;
}

/* Outside this pid namespace a peer has no pid here; and it must be the user who started the launcher. */
static bool peer_allowed(int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == 0 && peer.uid == box.host_uid;
}

static bool nonce_matches(struct bytes nonce) {
  uint8_t difference = nonce.size != NONCE_SIZE;
  for (uint32_t i = 0; i < NONCE_SIZE && nonce.size == NONCE_SIZE; i++) difference |= nonce.data[i] ^ box.plan.nonce[i];
  return difference == 0;
}

/* The latest proven attachment wins; the older one is closed first. */
static bool hello(struct channel *c) {
  struct reader r = {c->input, c->input + c->input_size, false};
  uint32_t oldest = get_u32(&r), newest = get_u32(&r);
  struct bytes nonce = get_bytes(&r);
  if (c->type != FRAME_HELLO || r.bad || !nonce_matches(nonce)) return false;
  explicit_bzero(c->input, c->input_size);
  const struct writer nothing = {0};
  control_event(FRAME_REPLACED, &nothing);
  detach();
  host = *c;
  host.limit = MESSAGE_MAX;
  *c = (struct channel){.fd = -1};
  if (oldest > PROTOCOL_REVISION || newest < PROTOCOL_REVISION) {
    errno = EPROTO;
    control_error(host.id, "hello", "no common protocol revision");
    return true;
  }
  static uint8_t space[LAYERS_MAX + 512];
  struct writer w = {space, 0, sizeof space, false};
  put_u32(&w, PROTOCOL_REVISION);
  put_string(&w, box.plan.sandbox_id);
  put_u64(&w, box.plan.generation);
  put_u8(&w, state());
  put_u8(&w, (uint8_t)box.plan.mode);
  put_u64(&w, box.netns_cookie);
  put_u8(&w, (uint8_t)frozen);
  put_u32(&w, box.listeners);
  put_u8(&w, layer_count);
  for (size_t i = 0; i < layers.size; i++) put_u8(&w, layers.data[i]);
  control_answer(host.id, &w, &box.init_pid_fd, box.init_pid_fd >= 0);
  channel_next(&host);
  return true;
}

/* ≤ FDS_MAX sockets from an index on. */
static void send_listeners(struct reader *r) {
  uint8_t space[256];
  struct writer w = {space, 0, sizeof space, false};
  uint32_t from = get_u32(r), count = 0;
  int fd[FDS_MAX];
  for (uint32_t i = from; i < box.listeners && count < FDS_MAX; i++) fd[count++] = box.listener[i].fd;
  put_u8(&w, (uint8_t)count);
  for (uint32_t i = 0; i < count; i++) {
    const struct listener *l = &box.listener[from + i];
    put_u8(&w, l->kind);
    put_u8(&w, l->family);
    put_u16(&w, l->port);
  }
  control_answer(host.id, &w, fd, (int)count);
}

static int confirm(struct bytes payload, struct writer *w) {
  struct writer added = {layers.data + layers.size, 0, layers.capacity - layers.size, false};
  errno = EALREADY;
  if (confirmed) return failed("confirm", "already confirmed");
  if (zygote_start(payload, &added) < 0) return -1;
  confirmed = true;
  put_u8(w, RESTRICTION_LAYERS);
  for (size_t i = 0; i < added.size; i++) put_u8(w, added.data[i]);
  layers.size += added.size;
  layer_count += RESTRICTION_LAYERS;
  frozen &= ~(unsigned)FROZEN_ABSENT;
  return 0;
}

static int begin(bool main, struct bytes request) {
  errno = !confirmed ? EPERM : frozen != 0 || ending ? EBUSY : request.size > SPEC_MAX ? E2BIG : main && main_begun() ? EALREADY : 0;
  if (errno != 0) return failed(main ? "main" : "spawn", !confirmed ? "not confirmed" : frozen != 0 ? "the sandbox is frozen" : "refused");
  return spawn_begin(host.id, main, request);
}

static void close_main(int from) {
  for (int i = from; i < main_process.fds; i++)
    if (main_process.fd[i] >= 0) close(main_process.fd[i]), main_process.fd[i] = -1;
}

/* The descriptors of the main process that are still open, and which ones these are. */
static void send_main(struct writer *w) {
  int fd[MAIN_FDS], fds = 0;
  uint8_t which = 0;
  for (int i = 0; i < main_process.fds; i++)
    if (main_process.fd[i] >= 0) fd[fds++] = main_process.fd[i], which |= (uint8_t)(1U << i);
  put_u32(w, main_process.handle);
  put_u32(w, (uint32_t)main_process.pid);
  put_u8(w, main_process.terminal);
  put_u8(w, which);
  put_u8(w, main_process.exited);
  put_u8(w, main_process.signaled);
  put_u32(w, main_process.status);
  control_answer(host.id, w, fd, fds);
}

static void new_identifier(void) {
  int pair[2];
  const struct writer none = {0};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
    control_error(host.id, "identifier", "");
    return;
  }
  if (identifier_attach(pair[1]) < 0) errno = failure.error, control_error(host.id, failure.step, failure.detail);
  else control_answer(host.id, &none, &pair[0], 1);
  close(pair[0]);
  close(pair[1]);
}

static int save(struct bytes blob) {
  errno = E2BIG;
  if (blob.size > STATE_MAX) return failed("save", "");
  uint8_t *copy = malloc(blob.size + 1);
  if (copy == NULL) return failed("save", "");
  memcpy(copy, blob.data, blob.size);
  free(saved);
  saved = copy;
  saved_size = blob.size;
  return 0;
}

static int terminate(uint32_t grace_ms) {
  if (!ending) end_at = monotonic_ms() + grace_ms;
  ending = true;
  set_frozen(0);
  if (main_process.started && !main_process.exited) spawn_signal(main_process.handle, SIGTERM, false);
  return 0;
}

/* Requests that answer later or with descriptors return 1; 0: answer with `w`; -1: answer with the failure. */
static int dispatch(struct bytes payload, struct writer *w) {
  struct reader r = {payload.data, payload.data + payload.size, false};
  switch (host.type) {
    case FRAME_SOCKETS: send_listeners(&r); return 1;
    case FRAME_CONFIRM: return confirm(payload, w);
    case FRAME_MAIN: return begin(true, payload) < 0 ? -1 : 1;
    case FRAME_SPAWN: return begin(false, payload) < 0 ? -1 : 1;
    case FRAME_SIGNAL: {
      uint32_t handle = get_u32(&r), number = get_u32(&r);
      bool group = get_u8(&r);
      return spawn_signal(handle, (int)number, group);
    }
    case FRAME_CLOSE_STDIN:
      if (!main_process.terminal && main_process.fds > 0 && main_process.fd[0] >= 0) close(main_process.fd[0]), main_process.fd[0] = -1;
      return 0;
    case FRAME_ACK_EXIT:
      if (main_process.exited) close_main(0);
      return 0;
    case FRAME_ATTACH_MAIN: send_main(w); return 1;
    case FRAME_IDENTIFIER: new_identifier(); return 1;
    case FRAME_SAVE: return save(payload);
    case FRAME_LOAD:
      *w = (struct writer){saved, saved_size, saved_size, false};
      return 0;
    case FRAME_FREEZE: return set_frozen(frozen | FROZEN_ASKED);
    case FRAME_THAW: return set_frozen(frozen & ~(unsigned)FROZEN_ASKED);
    case FRAME_RESUME: return set_frozen(frozen & ~(unsigned)FROZEN_ABSENT);
    case FRAME_TERMINATE: return terminate(get_u32(&r));
  }
  errno = ENOSYS;
  return failed("request", "unknown type");
}

static void serve_host(void) {
  static uint8_t space[4096];
  int got;
  while ((got = channel_receive(&host)) > 0) {
    struct writer w = {space, 0, sizeof space, false};
    uint32_t id = host.id;
    failure.step[0] = 0;
    int result = dispatch((struct bytes){host.input, (uint32_t)host.input_size}, &w);
    if (result < 0) errno = failure.error, control_error(id, failure.step, failure.detail);
    if (result == 0) control_answer(id, &w, NULL, 0);
    channel_next(&host);
  }
  if (got < 0) detach();
}

static void accept_stranger(void) {
  int fd = accept4(box.control, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  for (int i = 0; i < STRANGERS_MAX; i++) {
    if (strangers[i].fd >= 0 || !peer_allowed(fd)) continue;
    strangers[i] = (struct channel){.fd = fd, .limit = HELLO_MAX, .since = monotonic_ms()};
    return;
  }
  close(fd);
}

static void serve_stranger(struct channel *c) {
  int got = channel_receive(c);
  if (got < 0 || (got > 0 && !hello(c))) channel_close(c);
}

static bool overdue(const struct channel *c, int64_t now) {
  bool partial = c == &host ? c->head_size > 0 || c->input_size > 0 : true;
  return c->fd >= 0 && partial && now - c->since > HELLO_MS;
}

static int next_timeout(int64_t now) {
  int64_t at = now + (spawn_waits() ? 1000 : 60000);
  if (host.fd < 0 && orphan_at < at) at = orphan_at;
  if (end_at < at) at = end_at;
  if (freeze_again_at < at) at = freeze_again_at;
  for (int i = 0; i < STRANGERS_MAX; i++)
    if (strangers[i].fd >= 0 && strangers[i].since + HELLO_MS + 1 < at) at = strangers[i].since + HELLO_MS + 1;
  if (host.fd >= 0 && (host.head_size > 0 || host.input_size > 0) && host.since + HELLO_MS + 1 < at) at = host.since + HELLO_MS + 1;
  return at <= now ? 0 : (int)(at - now);
}

int control_start(const uint8_t *set_up, size_t size) {
  sigset_t mask;
  memcpy(layers.data, set_up, size);
  layers.size = size;
  layer_count = SET_UP_LAYERS;
  for (int i = 0; i < STRANGERS_MAX; i++) strangers[i].fd = -1;
  frozen = FROZEN_ABSENT;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_BLOCK, &mask, NULL);
  children = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (children < 0) return failed("signalfd", "");
  if (identifier_start() < 0 || keep_capabilities(CAPS_INIT) < 0) return -1;
  orphan_at = monotonic_ms() + (int64_t)box.plan.orphan_limit_ms;
  return listen(box.control, STRANGERS_MAX) < 0 ? failed("listen-control", "") : 0;
}

static bool over(int64_t now) {
  return (host.fd < 0 && now >= orphan_at) || now >= end_at || (ending && (!main_process.started || main_process.exited));
}

int control_run(void) {
  static struct pollfd list[3 + STRANGERS_MAX + SPAWNS_MAX + 1];
  bool more = false;
  for (int64_t now = monotonic_ms(); !over(now); now = monotonic_ms()) {
    list[0] = (struct pollfd){box.control, POLLIN, 0};
    list[1] = (struct pollfd){children, POLLIN, 0};
    list[2] = (struct pollfd){host.fd, (short)(POLLIN | (host.first != NULL ? POLLOUT : 0)), 0};
    for (int i = 0; i < STRANGERS_MAX; i++) list[3 + i] = (struct pollfd){strangers[i].fd, POLLIN, 0};
    int spawns = spawn_poll(list + 3 + STRANGERS_MAX);
    if (poll(list, (nfds_t)(3 + STRANGERS_MAX + spawns), more ? 0 : next_timeout(now)) < 0) continue;
    now = monotonic_ms();
    freeze_again(now);
    spawn_watch(now, frozen != 0);
    bool again = spawn_events(list + 3 + STRANGERS_MAX, spawns);
    if (list[1].revents != 0 || more || again) {
      struct signalfd_siginfo info;
      while (read(children, &info, sizeof info) > 0) {}
      more = reap();
    }
    if (list[2].revents & POLLOUT && channel_flush(&host) < 0) detach();
    else if (list[2].revents & (POLLIN | POLLHUP | POLLERR)) serve_host();
    for (int i = 0; i < STRANGERS_MAX; i++) {
      if (list[3 + i].revents != 0) serve_stranger(&strangers[i]);
      if (overdue(&strangers[i], now)) channel_close(&strangers[i]);
    }
    if (overdue(&host, now)) detach();
    if (list[0].revents != 0) accept_stranger();
  }
  /* The v1 freezer holds even SIGKILL back. The kernel ends everything else with this process. */
  set_frozen(0);
  channel_flush(&host);
  return 0;
}

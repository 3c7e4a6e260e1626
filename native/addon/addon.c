/* What Node cannot do with descriptors: messages that carry them, socket options, terminals, process hardening.
 * No state of its own: every channel is an external value, so worker threads can load it too. */
#include <errno.h>
#include <node_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <fcntl.h>

enum { CHUNK = 65536, FDS_MAX = 16, READS_A_TURN = 8, OPTION_MAX = 256 };

/* The few functions of libuv that this needs; Node exports them, node-api-headers has no uv.h. */
enum { UV_POLL = 8, UV_READABLE = 1, UV_WRITABLE = 2 };
extern size_t uv_handle_size(int type);
extern int uv_poll_init(void *loop, void *handle, int fd);
extern int uv_poll_start(void *handle, int events, void (*callback)(void *handle, int status, int events));
extern int uv_poll_stop(void *handle);
extern void uv_close(void *handle, void (*callback)(void *handle));

/* What the callback is told first. */
enum { EVENT_DATA = 0, EVENT_WRITABLE = 1, EVENT_CLOSED = 2, EVENT_READY = 3 };

struct channel {
  napi_env env;
  napi_ref callback;
  napi_async_context context;
  napi_async_cleanup_hook_handle hook;
  void *poll;              /* libuv keeps a pointer to the channel in its first word */
  int fd;
  bool writable, raw;      /* raw: only readiness is reported, nothing is read */
  bool busy, stopped, closed, collected, ending;
};

static napi_value throw_errno(napi_env env, const char *call) {
  int error = errno;
  napi_value message, value, number;
  char text[160];
  snprintf(text, sizeof text, "%s: %s", call, strerror(error));
  napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &message);
  napi_create_error(env, NULL, message, &value);
  napi_create_int32(env, -error, &number);
  napi_set_named_property(env, value, "errno", number);
  napi_throw(env, value);
  return NULL;
}

static int32_t int_argument(napi_env env, napi_value value) {
  int32_t number = -1;
  napi_get_value_int32(env, value, &number);
  return number;
}

#define ARGUMENTS(count)                                                   \
  napi_value argv[count];                                                  \
  size_t argc = count;                                                     \
  napi_get_cb_info(env, info, &argc, argv, NULL, NULL);                    \
  if (argc < count) return napi_throw_type_error(env, NULL, "arguments"), NULL
#define RETURN_INT(value) napi_value result; napi_create_int32(env, value, &result); return result

/* The last reference goes: libuv's, or JavaScript's. */
static void on_closed(void *poll) {
  struct channel *c = *(void **)poll;
  free(poll);
  c->closed = true;
  napi_remove_async_cleanup_hook(c->hook);
  if (c->collected) free(c);
}

/* What a running callback still needs goes when it returns; an ending environment takes these along by itself. */
static void release(struct channel *c) {
  if (c->busy || c->ending || !c->stopped || c->context == NULL) return;
  napi_delete_reference(c->env, c->callback);
  napi_async_destroy(c->env, c->context);
  c->context = NULL;
}

/* Nothing is called after this. The descriptor is closed last: its number may be another's at once. */
static void stop(struct channel *c) {
  if (c->stopped) return;
  c->stopped = true;
  uv_close(c->poll, on_closed);
  if (!c->raw) close(c->fd);
  release(c);
}

/* The environment waits for on_closed, whose code it would unload otherwise. */
static void at_exit(napi_async_cleanup_hook_handle hook, void *data) {
  struct channel *c = data;
  (void)hook;
  c->ending = true;
  stop(c);
}

static void collect(napi_env env, void *data, void *hint) {
  (void)env;
  (void)hint;
  struct channel *c = data;
  c->collected = true;
  if (c->closed) free(c);
  else stop(c);
}

static void call(struct channel *c, int event, napi_value data, napi_value fds) {
  napi_env env = c->env;
  napi_value argv[3], function, global, error;
  napi_create_int32(env, event, &argv[0]);
  argv[1] = data;
  argv[2] = fds;
  napi_get_undefined(env, &global);
  if (data == NULL) argv[1] = global;
  if (fds == NULL) argv[2] = global;
  napi_get_global(env, &global);
  napi_get_reference_value(env, c->callback, &function);
  c->busy = true;
  if (napi_make_callback(env, c->context, global, function, 3, argv, NULL) == napi_pending_exception) {
    napi_get_and_clear_last_exception(env, &error);
    napi_fatal_exception(env, error);
  }
  c->busy = false;
}

static void closed(struct channel *c, int error) {
  napi_value number;
  napi_create_int32(c->env, -error, &number);
  uv_poll_stop(c->poll);
  call(c, EVENT_CLOSED, number, NULL);
}

/* False when there is nothing more to read, or the channel ended. */
static bool read_once(struct channel *c) {
  static _Thread_local uint8_t chunk[CHUNK];
  union { char raw[CMSG_SPACE(sizeof(int) * FDS_MAX)]; struct cmsghdr align; } control;
  struct iovec iov = {chunk, sizeof chunk};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.raw, .msg_controllen = sizeof control.raw};
  ssize_t n;
  do n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  int error = n < 0 ? errno : 0, fd[FDS_MAX], fds = 0;
  for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; h != NULL; h = CMSG_NXTHDR(&m, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    fds = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fd, CMSG_DATA(h), sizeof(int) * (size_t)fds);
  }
  /* A full descriptor table delivers fewer than were sent, without an error. */
  if (n > 0 && m.msg_flags & MSG_CTRUNC) {
    for (int i = 0; i < fds; i++) close(fd[i]);
    error = EMFILE;
    n = -1;
  }
  if (n <= 0) {
    closed(c, error);
    return false;
  }
  napi_value data, list, number;
  napi_create_buffer_copy(c->env, (size_t)n, chunk, NULL, &data);
  napi_create_array_with_length(c->env, (size_t)fds, &list);
  for (int i = 0; i < fds; i++) {
    napi_create_int32(c->env, fd[i], &number);
    napi_set_element(c->env, list, (uint32_t)i, number);
  }
  call(c, EVENT_DATA, data, list);
  return !c->stopped;
}

static void on_event(void *handle, int status, int events) {
  struct channel *c = *(void **)handle;
  napi_handle_scope scope;
  if (c->stopped || napi_open_handle_scope(c->env, &scope) != napi_ok) return;
  napi_env env = c->env;
  if (status < 0) closed(c, -status);
  else if (c->raw) {
    uv_poll_stop(handle);
    call(c, EVENT_READY, NULL, NULL);
  } else {
    for (int i = 0; events & UV_READABLE && i < READS_A_TURN && read_once(c); i++) {}
    if (!c->stopped && events & UV_WRITABLE && c->writable) call(c, EVENT_WRITABLE, NULL, NULL);
  }
  release(c);
  napi_close_handle_scope(env, scope);
}

/* connect(path): a connected, non-blocking Unix stream socket. */
static napi_value connect_unix(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  size_t length = 0;
  napi_get_value_string_utf8(env, argv[0], a.sun_path, sizeof a.sun_path, &length);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return throw_errno(env, "socket");
  if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
    int error = errno;
    close(fd);
    errno = error;
    return throw_errno(env, "connect");
  }
  RETURN_INT(fd);
}

/* open(fd, callback, raw): takes the descriptor over unless raw. */
static napi_value open_channel(napi_env env, napi_callback_info info) {
  ARGUMENTS(3);
  struct channel *c = calloc(1, sizeof *c);
  struct uv_loop_s *loop;
  napi_value name, external;
  if (c == NULL) return throw_errno(env, "open");
  c->env = env;
  c->fd = int_argument(env, argv[0]);
  napi_get_value_bool(env, argv[2], &c->raw);
  c->poll = calloc(1, uv_handle_size(UV_POLL));
  napi_get_uv_event_loop(env, &loop);
  int error = c->poll == NULL ? -ENOMEM : uv_poll_init(loop, c->poll, c->fd);
  if (error < 0) {
    free(c->poll);
    free(c);
    errno = -error;
    return throw_errno(env, "poll");
  }
  *(void **)c->poll = c;
  napi_create_reference(env, argv[1], 1, &c->callback);
  napi_create_string_utf8(env, "openshell:channel", NAPI_AUTO_LENGTH, &name);
  napi_async_init(env, NULL, name, &c->context);
  napi_add_async_cleanup_hook(env, at_exit, c, &c->hook);
  napi_create_external(env, c, collect, NULL, &external);
  uv_poll_start(c->poll, UV_READABLE, on_event);
  return external;
}

static struct channel *channel_argument(napi_env env, napi_value value) {
  void *data = NULL;
  napi_get_value_external(env, value, &data);
  return data;
}

/* send(channel, bytes, offset): how many were taken; 0 when the peer lags. */
static napi_value send_channel(napi_env env, napi_callback_info info) {
  ARGUMENTS(3);
  struct channel *c = channel_argument(env, argv[0]);
  uint8_t *data = NULL;
  size_t size = 0;
  int32_t offset = int_argument(env, argv[2]);
  napi_get_buffer_info(env, argv[1], (void **)&data, &size);
  errno = EBADF;
  if (c == NULL || c->stopped || offset < 0 || (size_t)offset > size) return throw_errno(env, "send");
  ssize_t n;
  do n = send(c->fd, data + offset, size - (size_t)offset, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EAGAIN) return throw_errno(env, "send");
  RETURN_INT(n < 0 ? 0 : (int32_t)n);
}

/* watch(channel, writable): whether to be told when the peer takes more. */
static napi_value watch_channel(napi_env env, napi_callback_info info) {
  ARGUMENTS(2);
  struct channel *c = channel_argument(env, argv[0]);
  if (c == NULL || c->stopped) return NULL;
  napi_get_value_bool(env, argv[1], &c->writable);
  uv_poll_start(c->poll, UV_READABLE | (c->writable ? UV_WRITABLE : 0), on_event);
  return NULL;
}

static napi_value close_channel(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  struct channel *c = channel_argument(env, argv[0]);
  if (c != NULL) stop(c);
  return NULL;
}

/* getOption(fd, level, name, size): the option's bytes. */
static napi_value get_option(napi_env env, napi_callback_info info) {
  ARGUMENTS(4);
  uint8_t value[OPTION_MAX];
  int32_t wanted = int_argument(env, argv[3]);
  socklen_t size = wanted > 0 && wanted <= OPTION_MAX ? (socklen_t)wanted : OPTION_MAX;
  if (getsockopt(int_argument(env, argv[0]), int_argument(env, argv[1]), int_argument(env, argv[2]), value, &size) < 0) return throw_errno(env, "getsockopt");
  napi_value result;
  napi_create_buffer_copy(env, size, value, NULL, &result);
  return result;
}

/* setOption(fd, level, name, bytes). */
static napi_value set_option(napi_env env, napi_callback_info info) {
  ARGUMENTS(4);
  void *data = NULL;
  size_t size = 0;
  napi_get_buffer_info(env, argv[3], &data, &size);
  if (setsockopt(int_argument(env, argv[0]), int_argument(env, argv[1]), int_argument(env, argv[2]), data, (socklen_t)size) < 0) return throw_errno(env, "setsockopt");
  return NULL;
}

/* setWindowSize(fd, rows, columns) of a terminal's master end. */
static napi_value set_window_size(napi_env env, napi_callback_info info) {
  ARGUMENTS(3);
  struct winsize size = {.ws_row = (unsigned short)int_argument(env, argv[1]), .ws_col = (unsigned short)int_argument(env, argv[2])};
  if (ioctl(int_argument(env, argv[0]), TIOCSWINSZ, &size) < 0) return throw_errno(env, "ioctl TIOCSWINSZ");
  return NULL;
}

static napi_value duplicate(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  int fd = fcntl(int_argument(env, argv[0]), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return throw_errno(env, "dup");
  RETURN_INT(fd);
}

/* lock(fd): true when this open file now holds the exclusive lock, false when another one does. */
static napi_value lock(napi_env env, napi_callback_info info) {
  ARGUMENTS(1);
  napi_value result;
  bool held = flock(int_argument(env, argv[0]), LOCK_EX | LOCK_NB) == 0;
  if (!held && errno != EWOULDBLOCK) return throw_errno(env, "flock");
  napi_get_boolean(env, held, &result);
  return result;
}

/* harden(): no core file, no debugger or /proc/PID/mem for processes of the same user. */
static napi_value harden(napi_env env, napi_callback_info info) {
  (void)info;
  const struct rlimit none = {0, 0};
  if (setrlimit(RLIMIT_CORE, &none) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return throw_errno(env, "harden");
  return NULL;
}

NAPI_MODULE_INIT() {
  static const struct { const char *name; napi_callback function; } functions[] = {
      {"connect", connect_unix}, {"open", open_channel}, {"send", send_channel}, {"watch", watch_channel}, {"close", close_channel},
      {"getOption", get_option}, {"setOption", set_option}, {"setWindowSize", set_window_size}, {"duplicate", duplicate}, {"lock", lock}, {"harden", harden}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    napi_value function;
    napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, NULL, &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}

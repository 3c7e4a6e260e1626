/* Frames over a stream socket: bounded receive, descriptors out, a bounded queue for a peer that lags. */
#include "frames.h"

#include <sys/socket.h>

struct pending_frame {
  struct pending_frame *next;
  size_t size, sent;
  int fds, fd[FDS_MAX];
  uint8_t data[];
};

static void put(uint8_t *at, uint64_t value, int size) {
  for (int i = 0; i < size; i++) at[i] = (uint8_t)(value >> (8 * i));
}

void frame_head(uint8_t *head, size_t size, uint16_t type, uint16_t fds, uint32_t id, uint32_t flags) {
  put(head, size, 4);
  put(head + 4, type, 2);
  put(head + 6, fds, 2);
  put(head + 8, id, 4);
  put(head + 12, flags, 4);
}

/* 1: all read; 0: would block; -1: end or error. */
static int fill(int fd, uint8_t *data, size_t *have, size_t want) {
  while (*have < want) {
    ssize_t n = read(fd, data + *have, want - *have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n <= 0) return -1;
    *have += (size_t)n;
  }
  return 1;
}

static int start_frame(struct channel *c) {
  struct reader r = {c->head, c->head + FRAME_HEAD, false};
  bool going_on = c->flags & FLAG_MORE;
  uint32_t size = get_u32(&r);
  uint16_t type = get_u16(&r), fds = get_u16(&r);
  uint32_t id = get_u32(&r);
  c->flags = get_u32(&r);
  /* The host never sends descriptors, and the parts of a message follow each other. */
  if (size > FRAME_MAX - FRAME_HEAD || fds != 0 || (going_on && (type != c->type || id != c->id))) return -1;
  if (c->input_size + size > c->limit) return -1;
  if (c->input == NULL || c->input_size + size > c->input_capacity) {
    size_t capacity = c->input_size + size + FRAME_MAX;
    uint8_t *grown = realloc(c->input, capacity);
    if (grown == NULL) return -1;
    c->input = grown;
    c->input_capacity = capacity;
  }
  c->type = type;
  c->id = id;
  c->frame_left = size;
  return 0;
}

int channel_receive(struct channel *c) {
  for (;;) {
    if (c->head_size < FRAME_HEAD) {
      size_t before = c->head_size;
      int got = fill(c->fd, c->head, &c->head_size, FRAME_HEAD);
      if (before == 0 && c->head_size > 0 && c->input_size == 0) c->since = monotonic_ms();
      if (got <= 0) return got;
      if (start_frame(c) < 0) return -1;
    }
    size_t have = c->input_size, want = c->input_size + c->frame_left;
    int got = fill(c->fd, c->input, &have, want);
    c->frame_left = want - have;
    c->input_size = have;
    if (got <= 0) return got;
    c->head_size = 0;
    if (!(c->flags & FLAG_MORE)) return 1;
  }
}

void channel_next(struct channel *c) {
  c->input_size = 0;
  if (c->input_capacity > 2 * FRAME_MAX) {
    free(c->input);
    c->input = NULL;
    c->input_capacity = 0;
  }
}

static int send_part(struct channel *c, const uint8_t *head, const void *data, size_t size, const int *fd, int fds) {
  size_t total = FRAME_HEAD + size, sent = 0;
  if (c->first == NULL) {
    struct iovec iov[2] = {{(void *)head, FRAME_HEAD}, {(void *)data, size}};
    ssize_t n = send_fds(c->fd, iov, 2, fd, fds, MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) return -1;
    if (n == (ssize_t)total) return 0;
    sent = n > 0 ? (size_t)n : 0;
  }
  if (c->queued + total > QUEUE_MAX) return -1;
  struct pending_frame *f = malloc(sizeof *f + total);
  if (f == NULL) return -1;
  *f = (struct pending_frame){.size = total, .sent = sent};
  memcpy(f->data, head, FRAME_HEAD);
  if (size > 0) memcpy(f->data + FRAME_HEAD, data, size);
  for (int i = 0; i < fds && sent == 0; i++) {
    f->fd[f->fds] = fcntl(fd[i], F_DUPFD_CLOEXEC, 3);
    if (f->fd[f->fds++] >= 0) continue;
    while (--f->fds > 0) close(f->fd[f->fds - 1]);
    free(f);
    return -1;
  }
  if (c->first == NULL) c->first = f;
  else c->last->next = f;
  c->last = f;
  c->queued += total;
  return 0;
}

int channel_send(struct channel *c, uint16_t type, uint32_t id, const void *data, size_t size, const int *fd, int fds) {
  const uint8_t *at = data;
  do {
    uint8_t head[FRAME_HEAD];
    size_t part = size > FRAME_MAX - FRAME_HEAD ? FRAME_MAX - FRAME_HEAD : size;
    size -= part;
    frame_head(head, part, type, (uint16_t)fds, id, size > 0 ? FLAG_MORE : 0);
    if (send_part(c, head, at, part, fd, fds) < 0) return -1;
    at += part;
    fds = 0;
  } while (size > 0);
  return 0;
}

static void drop_first(struct channel *c) {
  struct pending_frame *f = c->first;
  for (int i = 0; i < f->fds; i++) close(f->fd[i]);
  c->first = f->next;
  c->queued -= f->size;
  free(f);
}

int channel_flush(struct channel *c) {
  while (c->first != NULL) {
    struct pending_frame *f = c->first;
    struct iovec iov = {f->data + f->sent, f->size - f->sent};
    ssize_t n = send_fds(c->fd, &iov, 1, f->fd, f->sent == 0 ? f->fds : 0, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN ? 0 : -1;
    f->sent += (size_t)n;
    if (f->sent == f->size) drop_first(c);
  }
  return 0;
}

void channel_close(struct channel *c) {
  while (c->first != NULL) drop_first(c);
  free(c->input);
  if (c->fd >= 0) close(c->fd);
  memset(c, 0, sizeof *c);
  c->fd = -1;
}

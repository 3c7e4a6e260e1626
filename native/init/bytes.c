/* Little-endian readers and writers with bounds, and failure records. */
#include "common.h"

#include <time.h>

struct failure failure;

static const uint8_t *take(struct reader *r, size_t size) {
  if (r->bad || (size_t)(r->end - r->at) < size) {
    r->bad = true;
    return NULL;
  }
  const uint8_t *at = r->at;
  r->at += size;
  return at;
}

static uint64_t get_number(struct reader *r, size_t size) {
  const uint8_t *p = take(r, size);
  uint64_t value = 0;
  for (size_t i = 0; p != NULL && i < size; i++) value |= (uint64_t)p[i] << (8 * i);
  return value;
}

uint8_t get_u8(struct reader *r) { return (uint8_t)get_number(r, 1); }
uint16_t get_u16(struct reader *r) { return (uint16_t)get_number(r, 2); }
uint32_t get_u32(struct reader *r) { return (uint32_t)get_number(r, 4); }
uint64_t get_u64(struct reader *r) { return get_number(r, 8); }

struct bytes get_bytes(struct reader *r) {
  uint32_t size = get_u32(r);
  struct bytes b = {take(r, size), size};
  if (b.data == NULL) b.size = 0;
  return b;
}

const char *get_string(struct reader *r) {
  struct bytes b = get_bytes(r);
  const uint8_t *zero = take(r, 1);
  if (zero == NULL || *zero != 0 || memchr(b.data, 0, b.size) != NULL) {
    r->bad = true;
    return "";
  }
  return (const char *)b.data;
}

uint32_t get_count(struct reader *r, uint32_t limit) {
  uint32_t count = get_u32(r);
  if (count > limit) r->bad = true;
  return r->bad ? 0 : count;
}

static void put_raw(struct writer *w, const void *data, size_t size) {
  if (w->bad || w->capacity - w->size < size) {
    w->bad = true;
    return;
  }
  memcpy(w->data + w->size, data, size);
  w->size += size;
}

static void put_number(struct writer *w, uint64_t value, size_t size) {
  uint8_t raw[8];
  for (size_t i = 0; i < size; i++) raw[i] = (uint8_t)(value >> (8 * i));
  put_raw(w, raw, size);
}

void put_u8(struct writer *w, uint8_t value) { put_number(w, value, 1); }
void put_u16(struct writer *w, uint16_t value) { put_number(w, value, 2); }
void put_u32(struct writer *w, uint32_t value) { put_number(w, value, 4); }
void put_u64(struct writer *w, uint64_t value) { put_number(w, value, 8); }

void put_bytes(struct writer *w, const void *data, size_t size) {
  put_u32(w, (uint32_t)size);
  put_raw(w, data, size);
}

void put_string(struct writer *w, const char *text) {
  put_bytes(w, text, strlen(text));
  put_u8(w, 0);
}

void put_layer(struct writer *w, const char *name, bool enforced, const char *detail) {
  put_string(w, name);
  put_u8(w, enforced);
  put_string(w, detail);
}

int failed(const char *step, const char *detail) {
  int error = errno;
  if (failure.step[0] == 0) {
    failure.error = error;
    snprintf(failure.step, sizeof failure.step, "%s", step);
    snprintf(failure.detail, sizeof failure.detail, "%s", detail);
  }
  return -1;
}

int64_t monotonic_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int write_all(int fd, const void *data, size_t size) {
  const char *p = data;
  while (size > 0) {
    ssize_t n = write(fd, p, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    p += n;
    size -= (size_t)n;
  }
  return 0;
}

void close_kept(int fd) {
  int error = errno;
  close(fd);
  errno = error;
}

int write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  /* One write: the kernel takes maps and cgroup members whole or not at all. */
  ssize_t n = write(fd, text, strlen(text));
  close_kept(fd);
  return n == (ssize_t)strlen(text) ? 0 : -1;
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Closes every descriptor but those in `keep`; negative entries are ignored. */
void close_except(const int *keep, int count) {
  int sorted[LISTENERS_MAX + 32], n = 0;
  for (int i = 0; i < count && n < LISTENERS_MAX + 32; i++)
    if (keep[i] >= 0) sorted[n++] = keep[i];
  qsort(sorted, (size_t)n, sizeof *sorted, by_number);
  unsigned from = 0;
  for (int i = 0; i < n; i++) {
    unsigned fd = (unsigned)sorted[i];
    if (fd > from) syscall(SYS_close_range, from, fd - 1, 0);
    from = fd + 1;
  }
  syscall(SYS_close_range, from, ~0U, 0);
}

uint32_t outside_id(const struct range *map, uint32_t ranges, uint32_t inside) {
  for (uint32_t i = 0; i < ranges; i++)
    if (inside >= map[i].inside && inside - map[i].inside < map[i].count) return map[i].outside + (inside - map[i].inside);
  return OVERFLOW_ID;
}

bool maps_inside(const struct range *map, uint32_t ranges, uint32_t inside) {
  for (uint32_t i = 0; i < ranges; i++)
    if (inside >= map[i].inside && inside - map[i].inside < map[i].count) return true;
  return false;
}

/* Feeds bytes to what openshell-init decodes: the first one says whether the rest is a launch plan or frames. Built with
 * sanitizers by init.test.ts, which replays seeds and mutations of them; with -DFUZZER and clang's -fsanitize=fuzzer it
 * searches by itself. */
#include <sys/socket.h>

#include "../../native/init/frames.h"

struct sandbox box;

static void plan(const uint8_t *data, size_t size) {
  static struct plan p;
  memset(&p, 0, sizeof p);
  if (!decode_plan(data, size, &p)) return;
  /* What was accepted is within its bounds and points into the input. */
  volatile uint8_t sum = 0;
  for (uint32_t i = 0; i < p.steps; i++) {
    for (const char *at = p.step[i].target; *at; at++) sum += (uint8_t)*at;
    for (const char *at = p.step[i].source; at != NULL && *at; at++) sum += (uint8_t)*at;
    for (uint32_t j = 0; j < p.step[i].content.size; j++) sum += p.step[i].content.data[j];
  }
  for (uint32_t i = 0; i < p.fixups; i++) sum += p.sk_program.data[(size_t)p.fixup[i] * 8 + 7];
  for (uint32_t i = 0; i < p.routes; i++)
    for (uint32_t j = 0; j < p.route[i].message.size; j++) sum += p.route[i].message.data[j];
  outside_id(p.uid_map, p.uid_ranges, p.uid);
}

/* Written in pieces, so that frames are cut at every place; then answers of every size go back. */
static void frames(const uint8_t *data, size_t size) {
  int pair[2];
  if (size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) return;
  struct channel c = {.fd = pair[0], .limit = 32768};
  size_t at = 0, piece = size > 0 ? data[0] + 1U : 1;
  int got = 0;
  while (got >= 0) {
    size_t n = size - at < piece ? size - at : piece;
    if (n > 0 && write(pair[1], data + at, n) != (ssize_t)n) break;
    at += n;
    if (n == 0) shutdown(pair[1], SHUT_WR);
    while ((got = channel_receive(&c)) > 0) {
      volatile uint8_t sum = 0;
      for (size_t i = 0; i < c.input_size; i++) sum += c.input[i];
      if (c.input_size > c.limit) abort();
      if (channel_send(&c, c.type, c.id, c.input, c.input_size, pair, c.flags & 2 ? 2 : 0) < 0) break;
      channel_next(&c);
    }
  }
  channel_close(&c);
  close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  failure.step[0] = 0;
  /* A copy of exactly this size: the first byte read past its end is noticed. */
  uint8_t *copy = malloc(size);
  if (copy == NULL) return 0;
  memcpy(copy, data, size);
  (copy[0] & 1 ? frames : plan)(copy + 1, size - 1);
  free(copy);
  return 0;
}

#ifndef FUZZER
enum { INPUT_MAX = 1 << 16 };

static uint32_t random_number(void) {
  static uint64_t state = 0x9e3779b97f4a7c15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 32);
}

/* Numbers at the edges of lengths and counts, bytes, a cut. */
static size_t mutate(uint8_t *data, size_t size) {
  static const uint32_t edges[] = {0, 1, 16, 17, 511, 512, 513, 65519, 65520, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
  for (uint32_t left = 1 + random_number() % 4; left > 0 && size > 0; left--) {
    size_t at = random_number() % size;
    uint32_t kind = random_number() % 8, edge = edges[random_number() % (sizeof edges / sizeof *edges)];
    if (kind == 0) size = at + 1;
    else if (kind < 4) data[at] = (uint8_t)random_number();
    else if (size - at >= sizeof edge) memcpy(data + at, &edge, sizeof edge);
  }
  return size;
}

int main(int argc, char **argv) {
  static uint8_t seed[INPUT_MAX], data[INPUT_MAX];
  int rounds = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 2; i < argc; i++) {
    int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, seed, sizeof seed);
    if (n < 1) return perror(argv[i]), 1;
    close(fd);
    LLVMFuzzerTestOneInput(seed, (size_t)n);
    for (int round = 0; round < rounds; round++) {
      memcpy(data, seed, (size_t)n);
      LLVMFuzzerTestOneInput(data, 1 + mutate(data + 1, (size_t)n - 1));
    }
  }
  return puts("decoded") < 0;
}
#endif

/* Launcher side: loads the compiled sk_lookup program and links it to the sandbox's network namespace. */
#include "bpf.h"

/* Layouts of union bpf_attr (linux/bpf.h); own copies, since older headers lack link_create. */
enum { CMD_MAP_CREATE = 0, CMD_MAP_UPDATE = 2, CMD_PROG_LOAD = 5, CMD_LINK_CREATE = 28, MAP_SOCKMAP = 15, PROG_SK_LOOKUP = 30, ATTACH_SK_LOOKUP = 36, PSEUDO_MAP_FD = 1 };

static int bpf(int command, const void *attr, unsigned size) { return (int)syscall(SYS_bpf, command, attr, size); }

int attach_lookup(const int *socket, int sockets, int netns) {
  const struct plan *p = &box.plan;
  struct { uint32_t type, key, value, entries, flags; } map_attr = {MAP_SOCKMAP, 4, 8, 2, 0};
  int map = bpf(CMD_MAP_CREATE, &map_attr, sizeof map_attr);
  if (map < 0) return failed("sk-lookup-map", "");
  for (int i = 0; i < sockets; i++) {
    uint32_t key = (uint32_t)i;
    uint64_t value = (uint64_t)socket[i];
    struct { uint32_t map, pad; uint64_t key, value, flags; } update = {(uint32_t)map, 0, (uintptr_t)&key, (uintptr_t)&value, 0};
    if (bpf(CMD_MAP_UPDATE, &update, sizeof update) < 0) return failed("sk-lookup-socket", i == 0 ? "ipv4" : "ipv6");
  }
  uint8_t *code = malloc(p->sk_program.size);
  if (code == NULL) return failed("sk-lookup-load", "memory");
  memcpy(code, p->sk_program.data, p->sk_program.size);
  for (uint32_t i = 0; i < p->fixups; i++) {
    uint8_t *at = code + (size_t)p->fixup[i] * 8;
    uint32_t descriptor = (uint32_t)map;
    at[1] = (uint8_t)((at[1] & 0x0f) | PSEUDO_MAP_FD << 4);
    memcpy(at + 4, &descriptor, 4);
  }
  static char log[4096];
  struct {
    uint32_t type, count;
    uint64_t code, license;
    uint32_t log_level, log_size;
    uint64_t log;
    uint32_t kernel, flags;
    char name[16];
    uint32_t ifindex, attach;
  } load = {.type = PROG_SK_LOOKUP, .count = p->sk_program.size / 8, .code = (uintptr_t)code, .license = (uintptr_t)"Apache-2.0", .name = "openshell", .attach = ATTACH_SK_LOOKUP};
  int program = bpf(CMD_PROG_LOAD, &load, sizeof load);
  if (program < 0) {
    int error = errno;
    load.log = (uintptr_t)log;
    load.log_size = sizeof log;
    load.log_level = 1;
    bpf(CMD_PROG_LOAD, &load, sizeof load);
    size_t length = strlen(log);
    errno = error;
    return failed("sk-lookup-load", length > 200 ? log + length - 200 : log);
  }
  free(code);
  struct { uint32_t program, target, attach, flags; } link_attr = {(uint32_t)program, (uint32_t)netns, ATTACH_SK_LOOKUP, 0};
  int link = bpf(CMD_LINK_CREATE, &link_attr, sizeof link_attr);
  if (link < 0) return failed("sk-lookup-link", "");
  close(program);
  close(map);
  return link;
}

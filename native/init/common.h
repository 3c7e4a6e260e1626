/* Shared declarations of openshell-init: limits, the decoded plan, byte readers and writers, failure reports. */
#ifndef OPENSHELL_COMMON_H
#define OPENSHELL_COMMON_H
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
  PLAN_MAX = 8 << 20,      /* bytes; CA bundles travel as file steps */
  STEPS_MAX = 512,
  RANGES_MAX = 16,
  ROUTES_MAX = 512,
  PORTS_MAX = 128,
  CGROUPS_MAX = 16,
  LISTENERS_MAX = 2 * PORTS_MAX + 2,
  NONCE_SIZE = 32,
  OVERFLOW_ID = 65534      /* how an id without a mapping looks from inside */
};

struct bytes { const uint8_t *data; uint32_t size; };
struct range { uint32_t inside, outside, count; };
struct route { struct bytes message; bool optional; };

enum step_kind { STEP_TMPFS = 1, STEP_DIRECTORY, STEP_FILE, STEP_SYMLINK, STEP_BIND, STEP_VOLUME, STEP_PROC, STEP_DEVPTS, STEP_SEAL, STEP_OVERLAY };
/* Whose ids those on disk appear as: as they are; one owner's as the agent's; all as the ids inside. */
enum step_idmap { IDMAP_NONE = 0, IDMAP_OWNER, IDMAP_SANDBOX };
struct step {
  enum step_kind kind;
  const char *target, *source;
  struct bytes content;
  uint64_t size;
  uint32_t mode, host_uid, host_gid;
  bool agent_owned, read_only, recursive, optional, noexec, device;
  enum step_idmap idmap;
  int tree;                /* detached mount, or -1: init opens it itself; -2: optional and absent */
};

enum capture_mode { CAPTURE_SK_LOOKUP = 1, CAPTURE_NFT, CAPTURE_PORTS };
enum freezer_kind { FREEZER_SIGNALS = 0, FREEZER_V1, FREEZER_V2 };

struct plan {
  const char *sandbox_id, *control_folder, *control_socket, *hostname, *freezer_folder;
  uint64_t generation, orphan_limit_ms;
  const uint8_t *nonce;    /* the only copy: helpers wipe theirs */
  uint32_t uid, gid;
  struct range uid_map[RANGES_MAX], gid_map[RANGES_MAX];
  uint32_t uid_ranges, gid_ranges, cgroups, steps, routes, nft_acks, fixups, ports;
  bool deny_setgroups;
  const char *cgroup[CGROUPS_MAX];
  enum freezer_kind freezer;
  struct step step[STEPS_MAX];
  enum capture_mode mode;
  struct route route[ROUTES_MAX];
  struct bytes sk_program, nft;
  uint32_t fixup[8];
  uint16_t port[PORTS_MAX];
};

/* A listening or bound socket that init made and keeps. */
enum socket_kind { SOCKET_CAPTURE = 1, SOCKET_DNS_UDP, SOCKET_DNS_TCP };
struct listener { int fd; uint8_t kind, family; uint16_t port; };

/* What the launcher leaves to init by fork; one object a process. */
struct sandbox {
  struct plan plan;
  struct listener listener[LISTENERS_MAX];
  uint32_t listeners;
  uint64_t netns_cookie;
  uint32_t host_uid;       /* the host's uid as seen from inside */
  bool privileged, inside_root, ipv6, overlay;
  int control, link, freeze_file, freeze_state, freeze_procs, init_pid_fd;
};
extern struct sandbox box;

/* Bounded reader: after any overrun `bad` is set and every value is zero or "". */
struct reader { const uint8_t *at, *end; bool bad; };
uint8_t get_u8(struct reader *r);
uint16_t get_u16(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
struct bytes get_bytes(struct reader *r);
const char *get_string(struct reader *r);  /* in place: the encoding carries a terminating zero */
uint32_t get_count(struct reader *r, uint32_t limit);

struct writer { uint8_t *data; size_t size, capacity; bool bad; };
void put_u8(struct writer *w, uint8_t value);
void put_u16(struct writer *w, uint16_t value);
void put_u32(struct writer *w, uint32_t value);
void put_u64(struct writer *w, uint64_t value);
void put_bytes(struct writer *w, const void *data, size_t size);
void put_string(struct writer *w, const char *text);
void put_layer(struct writer *w, const char *name, bool enforced, const char *detail);

/* The first failure of this process: which step, on what, why. */
struct failure { char step[40], detail[256]; int error; };
extern struct failure failure;
int failed(const char *step, const char *detail);  /* records errno once; always -1 */

bool decode_plan(const uint8_t *data, size_t size, struct plan *plan);
int64_t monotonic_ms(void);
int write_all(int fd, const void *data, size_t size);
int write_file(const char *path, const char *text);
void close_except(const int *keep, int count);
void close_kept(int fd);                   /* errno stays */
uint32_t outside_id(const struct range *map, uint32_t ranges, uint32_t inside);
bool maps_inside(const struct range *map, uint32_t ranges, uint32_t inside);

int launch(void);                       /* launch.c: the outer role */
int quota(int count, char **arg);       /* quota.c: limits of projects on a file system */
int init_main(int sync);                /* main.c: the inner role, pid 1 */
#endif

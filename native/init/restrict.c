/* What binds every agent process, applied once in the zygote: rlimits, umask, Landlock, no_new_privs, seccomp. */
#include "restrict.h"

#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "caps.h"

/* Landlock, from linux/landlock.h; own copies, since older headers lack the newer rights. */
struct ruleset { uint64_t fs, net, scoped; };
struct path_rule { uint64_t access; int32_t parent; } __attribute__((packed));
static const uint64_t fs_of_abi[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};
#define FILE_RIGHTS (1ULL << 0 | 1ULL << 1 | 1ULL << 2 | 1ULL << 14 | 1ULL << 15) /* execute, write, read, truncate, ioctl_dev */

static int apply_rlimits(struct reader *r) {
  char which[32];
  for (uint32_t left = get_count(r, 32); left > 0; left--) {
    int resource = (int)get_u32(r);
    struct rlimit wanted, now;
    wanted.rlim_cur = get_u64(r);
    wanted.rlim_max = get_u64(r);
    snprintf(which, sizeof which, "resource %d", resource);
    if (r->bad || getrlimit((__rlimit_resource_t)resource, &now) < 0) return failed("rlimit", which);
    /* Only downwards: raising a hard limit would need a privilege that init lacks, and less is what was meant. */
    if (wanted.rlim_max > now.rlim_max) wanted.rlim_max = now.rlim_max;
    if (wanted.rlim_cur > wanted.rlim_max) wanted.rlim_cur = wanted.rlim_max;
    if (setrlimit((__rlimit_resource_t)resource, &wanted) < 0) return failed("rlimit", which);
  }
  return 0;
}

/* Replaces the first symbolic link in `path` by its target. Only links on read-only mounts count: the agent may have
 * planted any other in an earlier life of its home. */
static int follow_trusted(char *path, size_t size) {
  struct stat st;
  struct statvfs fs;
  char target[1024], next[4096];
  for (char *end = strchr(path + 1, '/');; end = strchr(end + 1, '/')) {
    if (end != NULL) *end = 0;
    ssize_t n = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
    if (n > 0) {
      target[n] = 0;
      char *name = strrchr(path, '/');
      int length = target[0] == '/' ? 0 : (int)(name - path) + 1;
      errno = ELOOP;
      *name = 0;
      if (statvfs(*path ? path : "/", &fs) < 0 || !(fs.f_flag & ST_RDONLY)) return -1;
      *name = '/';
      if (snprintf(next, sizeof next, "%.*s%s%s%s", length, path, target, end ? "/" : "", end ? end + 1 : "") >= (int)size) return -1;
      strcpy(path, next);
      return 0;
    }
    errno = ENOENT;
    if (end == NULL) return -1;
    *end = '/';
  }
}

static int open_rule_path(const char *wanted) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
  char path[4096];
  if (snprintf(path, sizeof path, "%s", wanted) >= (int)sizeof path || path[0] != '/') return errno = EINVAL, -1;
  for (int links = 0; links < 8; links++) {
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd >= 0 || errno != ELOOP || follow_trusted(path, sizeof path) < 0) return fd;
  }
  return -1;
}

static int add_rule(int ruleset, const char *path, uint64_t access, bool required) {
  struct stat st;
  int fd = open_rule_path(path);
  if (fd < 0) return required ? failed("landlock-path", path) : 0;
  if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode)) access &= FILE_RIGHTS;
  struct path_rule rule = {access, fd};
  int result = access == 0 ? 0 : (int)syscall(SYS_landlock_add_rule, ruleset, 1 /* LANDLOCK_RULE_PATH_BENEATH */, &rule, 0);
  if (result < 0) failed("landlock-rule", path);
  close(fd);
  return result;
}

/* Returns the ruleset's descriptor, -1 when none was asked for or the kernel has no Landlock, -2 after a failure. */
static int build_landlock(struct reader *r, struct writer *layers) {
  char text[96];
  bool asked = get_u8(r);
  struct ruleset wanted;
  wanted.fs = get_u64(r);
  wanted.net = get_u64(r);
  wanted.scoped = get_u64(r);
  int abi = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
  int ruleset = -1;
  if (asked && abi > 0) {
    /* What this kernel cannot handle is left out and reported. */
    wanted.fs &= fs_of_abi[abi > 5 ? 5 : abi];
    wanted.net &= abi >= 4 ? 3 : 0;
    wanted.scoped &= abi >= 6 ? 3 : 0;
    size_t size = abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &wanted, size, 0);
    if (ruleset < 0) return failed("landlock-ruleset", "") - 1;
  }
  snprintf(text, sizeof text, "abi=%d fs=%#llx net=%#llx scoped=%#llx", abi < 0 ? 0 : abi, (unsigned long long)wanted.fs, (unsigned long long)wanted.net, (unsigned long long)wanted.scoped);
  put_layer(layers, "landlock", ruleset >= 0, asked ? text : "not asked for");
  act_as_agent_on_files(true);
  for (uint32_t left = get_count(r, 1024); left > 0 && !r->bad; left--) {
    const char *path = get_string(r);
    uint64_t access = get_u64(r) & wanted.fs;
    bool required = get_u8(r);
    if (ruleset >= 0 && add_rule(ruleset, path, access, required) < 0) return -2;
  }
  act_as_agent_on_files(false);
  return ruleset;
}

int apply_restrictions(struct bytes payload, struct writer *layers) {
  struct reader r = {payload.data, payload.data + payload.size, false};
  int ruleset = build_landlock(&r, layers);
  struct bytes filter = get_bytes(&r);
  errno = EINVAL;
  if (ruleset == -2 || r.bad || filter.size % sizeof(struct sock_filter) != 0 || filter.size / sizeof(struct sock_filter) > 4096) return failed("restrictions", "malformed");
  mode_t mask = (mode_t)get_u32(&r) & 0777;
  if (apply_rlimits(&r) < 0) return -1;
  umask(mask);
  if (lock_capabilities() < 0 || keep_capabilities(box.inside_root ? CAPS_ZYGOTE : 0) < 0) return -1;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return failed("no-new-privs", "");
  if (ruleset >= 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) < 0) return failed("landlock-restrict", "");
  if (ruleset >= 0) close(ruleset);
  put_layer(layers, "no_new_privs", true, "");
  put_layer(layers, "capabilities", true, "bounding set empty, NOROOT locked");
  put_layer(layers, "seccomp", filter.size > 0, filter.size > 0 ? "deny list" : "no program was given");
  /* The kernel copies the program; malloc keeps it aligned. */
  struct sock_filter *code = malloc(filter.size + 1);
  if (code == NULL) return failed("seccomp", "memory");
  memcpy(code, filter.data, filter.size);
  struct sock_fprog program = {(unsigned short)(filter.size / sizeof *code), code};
  if (filter.size > 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0) return failed("seccomp", "");
  free(code);
  return 0;
}

/* The sandbox's file system: detached trees, the new root, pivot. Nothing here follows a symbolic link below the root. */
#include "root.h"

#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Own copies of these numbers: sys/mount.h and linux/mount.h of different C libraries exclude each other. */
enum {
  TREE_CLONE = 1, TREE_CLOEXEC = O_CLOEXEC, MOVE_F_EMPTY = 0x4, MOVE_T_EMPTY = 0x40,
  ATTR_RDONLY = 0x1, ATTR_NOSUID = 0x2, ATTR_NODEV = 0x4, ATTR_NOEXEC = 0x8, ATTR_IDMAP = 0x100000
};
struct attr { uint64_t set, clear, propagation, userns; };

static int set_attr(int tree, const char *path, unsigned flags, uint64_t attrs, int userns) {
  /* A clone of a shared mount is its peer: what is mounted below it would appear on the host as well. */
  struct attr a = {.set = attrs, .propagation = MS_PRIVATE, .userns = userns < 0 ? 0 : (uint64_t)userns};
  return (int)syscall(SYS_mount_setattr, tree, path, flags, &a, sizeof a);
}

/* Opens a caller's path one component at a time without any link, so that nobody can redirect it between check and use. */
static int open_plain(const char *path) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
  return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

int open_tree_for(struct step *s, int userns) {
  bool volume = s->kind == STEP_VOLUME;
  int at = volume ? open_plain(s->source) : open(s->source, O_PATH | O_CLOEXEC);
  if (at < 0) {
    if (s->optional && (errno == ENOENT || errno == EACCES)) {
      s->tree = -2;
      return 0;
    }
    return failed(volume ? "volume-open" : "bind-open", s->source);
  }
  unsigned recursive = s->recursive ? AT_RECURSIVE : 0;
  int tree = (int)syscall(SYS_open_tree, at, "", AT_EMPTY_PATH | TREE_CLONE | TREE_CLOEXEC | recursive);
  close_kept(at);
  if (tree < 0) return failed(volume ? "volume-clone" : "bind-clone", s->source);
  uint64_t attrs = ATTR_NOSUID | (s->device ? 0 : ATTR_NODEV) | (s->read_only ? ATTR_RDONLY : 0) | (s->noexec ? ATTR_NOEXEC : 0);
  if (set_attr(tree, "", AT_EMPTY_PATH | recursive, attrs, -1) < 0) return failed("bind-attributes", s->source);
  if (userns >= 0 && set_attr(tree, "", AT_EMPTY_PATH, ATTR_IDMAP, userns) < 0) return failed("volume-idmap", s->source);
  s->tree = tree;
  return 0;
}

/* Opens `path` ("/a/b") below the new root, which is the working directory. */
static int open_below(const char *path, uint64_t flags) {
  while (*path == '/') path++;
  struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
  return (int)syscall(SYS_openat2, AT_FDCWD, *path ? path : ".", &how, sizeof how);
}

/* The folder that holds `path`, its missing parents made; `name` becomes the last component. */
static int open_parent(const char *path, char *name, size_t size) {
  int dir = open_below("/", O_PATH | O_DIRECTORY);
  const char *at = path;
  for (;;) {
    while (*at == '/') at++;
    size_t length = strcspn(at, "/");
    if (length == 0 || length >= size || dir < 0) break;
    snprintf(name, size, "%.*s", (int)length, at);
    at += length;
    if (strspn(at, "/") == strlen(at)) return dir;
    if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST) break;
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int next = (int)syscall(SYS_openat2, dir, name, &how, sizeof how);
    close(dir);
    dir = next;
  }
  if (dir >= 0) close(dir);
  return -1;
}

static int own(int dir, const char *name, const struct step *s) {
  if (!s->agent_owned) return 0;
  return fchownat(dir, name, box.plan.uid, box.plan.gid, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH));
}

static int make_directory(const char *target, uint32_t mode, const struct step *s) {
  char name[256];
  if (strspn(target, "/") == strlen(target)) return 0;
  int dir = open_parent(target, name, sizeof name);
  if (dir < 0) return -1;
  int result = mkdirat(dir, name, mode & 07777);
  if (result < 0 && errno == EEXIST) result = 0;
  else if (result == 0 && (fchmodat(dir, name, mode & 07777, 0) < 0 || own(dir, name, s) < 0)) result = -1;
  close(dir);
  return result;
}

/* A mount point of the right type; an existing one stays as it is. */
static int make_point(const struct step *s, const char *target, bool folder) {
  if (folder) return make_directory(target, 0755, s);
  char name[256];
  int dir = open_parent(target, name, sizeof name);
  if (dir < 0) return -1;
  int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  int result = fd >= 0 || errno == EEXIST ? 0 : -1;
  if (fd >= 0) close(fd);
  close(dir);
  return result;
}

static int attach(int tree, const char *target) {
  int at = open_below(target, O_PATH);
  if (at < 0) return -1;
  int result = (int)syscall(SYS_move_mount, tree, "", at, "", MOVE_F_EMPTY | MOVE_T_EMPTY);
  close_kept(at);
  return result;
}

static int mount_tree(const struct step *s) {
  struct stat st;
  if (fstat(s->tree, &st) < 0 || make_point(s, s->target, S_ISDIR(st.st_mode)) < 0) return failed("mount-point", s->target);
  if (attach(s->tree, s->target) < 0) return failed("mount", s->target);
  close(s->tree);
  return 0;
}

/* Mounts a file system of the sandbox's own through a descriptor, so that `target` is never resolved by name. */
static int mount_at(const char *type, const char *target, unsigned long flags, const char *options) {
  char path[64];
  int at = open_below(target, O_PATH | O_DIRECTORY);
  if (at < 0) return -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", at);
  int result = mount(type, path, type, flags, options);
  close_kept(at);
  return result;
}

static int mount_tmpfs(const struct step *s, const char *target, uint32_t mode, uint64_t size) {
  char options[96];
  unsigned long flags = MS_NOSUID | MS_NODEV | (s->noexec ? MS_NOEXEC : 0);
  snprintf(options, sizeof options, "mode=%o,size=%llu", mode & 07777, (unsigned long long)size);
  if (make_directory(target, mode, s) < 0 || mount_at("tmpfs", target, flags, options) < 0) return failed("tmpfs", target);
  int at = open_below(target, O_PATH | O_DIRECTORY);
  if (at < 0 || own(at, "", s) < 0) return failed("tmpfs-owner", target);
  close(at);
  return 0;
}

static int make_file(const struct step *s) {
  char name[256];
  int dir = open_parent(s->target, name, sizeof name);
  if (dir < 0) return failed("file", s->target);
  int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  close(dir);
  if (fd < 0 || write_all(fd, s->content.data, s->content.size) < 0 || fchmod(fd, s->mode & 07777) < 0) return failed("file", s->target);
  close(fd);
  return 0;
}

static int make_link(const char *target, const char *to) {
  char name[256];
  int dir = open_parent(target, name, sizeof name);
  if (dir < 0) return failed("symlink", target);
  int result = symlinkat(to, dir, name);
  close_kept(dir);
  return result < 0 && errno != EEXIST ? failed("symlink", target) : 0;
}

static int seal(const char *target) {
  int at = open_below(target, O_PATH | O_DIRECTORY);
  if (at < 0 || set_attr(at, "", AT_EMPTY_PATH, ATTR_RDONLY, -1) < 0) return failed("seal", target);
  close(at);
  return 0;
}

/* The image under a layer of the sandbox's own becomes the root: the steps before put its parts below the first one, the
 * steps after work below it. Names in `source` are relative, so that the kernel shows no path of the host inside. */
static int mount_overlay(const struct step *s) {
  if (make_directory(s->target, 0755, s) < 0 || mount_at("overlay", s->target, MS_NOSUID | MS_NODEV, s->source) < 0) return failed("overlay", s->target);
  int at = open_below(s->target, O_PATH | O_DIRECTORY);
  if (at < 0 || fchdir(at) < 0) return failed("overlay-enter", s->target);
  close(at);
  box.overlay = true;
  return 0;
}

static int carry_out(struct step *s) {
  switch (s->kind) {
    case STEP_TMPFS: return mount_tmpfs(s, s->target, s->mode, s->size);
    case STEP_DIRECTORY: return make_directory(s->target, s->mode, s) < 0 ? failed("directory", s->target) : 0;
    case STEP_FILE: return make_file(s);
    case STEP_SYMLINK: return make_link(s->target, s->source);
    case STEP_BIND:
    case STEP_VOLUME: return s->tree == -2 ? 0 : mount_tree(s);
    case STEP_PROC:
      if (make_directory(s->target, 0555, s) < 0 || mount_at("proc", s->target, MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=invisible") < 0)
        return failed("proc", s->target);
      return 0;
    case STEP_DEVPTS:
      if (make_directory(s->target, 0755, s) < 0 || mount_at("devpts", s->target, MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") < 0)
        return failed("devpts", s->target);
      return 0;
    case STEP_SEAL: return seal(s->target);
    case STEP_OVERLAY: return mount_overlay(s);
  }
  return failed("step", s->target);
}

int build_root(void) {
  struct plan *p = &box.plan;
  char options[96];
  umask(0);
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return failed("private-mounts", "/");
  for (uint32_t i = 1; i < p->steps; i++) {
    struct step *s = &p->step[i];
    if ((s->kind == STEP_BIND || s->kind == STEP_VOLUME) && s->tree == -1 && open_tree_for(s, -1) < 0) return -1;
  }
  /* /sys is the mount point: always there, reachable by every id, never a source of a step, and /proc stays usable. */
  snprintf(options, sizeof options, "mode=%o,size=%llu", p->step[0].mode & 07777, (unsigned long long)p->step[0].size);
  if (mount("tmpfs", "/sys", "tmpfs", MS_NOSUID | MS_NODEV, options) < 0 || chdir("/sys") < 0) return failed("new-root", "/sys");
  for (uint32_t i = 1; i < p->steps; i++)
    if (carry_out(&p->step[i]) < 0) return -1;
  if (syscall(SYS_pivot_root, ".", ".") < 0) return failed("pivot-root", ".");
  if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) return failed("detach-old-root", ".");
  umask(077);
  return 0;
}

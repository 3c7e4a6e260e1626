/* Project quotas, which only system calls reach: `quota PLACE` asks whether their limits are in force on PLACE's file
 * system; `quota PLACE ID KIB [FOLDER…]` gives empty FOLDERs to project ID and limits it. Told by exit status. */
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>

#include "common.h"

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
enum { FAILED = 1, NOT_IN_FORCE = 3, IN_USE = 4 };

static int control(int place, unsigned command, uint32_t id, void *data) {
  return (int)syscall(SYS_quotactl_fd, place, QCMD(command, PRJQUOTA), id, data);
}

static int complain(const char *step, const char *path) {
  fprintf(stderr, "%s %s: %s\n", step, path, strerror(errno));
  return FAILED;
}

static int open_folder(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Whether a folder is the project's already; makes it so when told. -1: neither. */
static int belongs(const char *path, uint32_t id, bool make) {
  struct fsxattr x;
  int folder = open_folder(path);
  int own = folder < 0 || ioctl(folder, FS_IOC_FSGETXATTR, &x) < 0 ? -1 : x.fsx_projid == id && x.fsx_xflags & FS_XFLAG_PROJINHERIT;
  if (own == 0 && make) {
    x.fsx_projid = id;
    x.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    own = ioctl(folder, FS_IOC_FSSETXATTR, &x) < 0 ? -1 : 1;
  }
  if (folder >= 0) close_kept(folder);
  return own;
}

int quota(int count, char **arg) {
  struct fs_quota_stat state = {0};
  struct if_dqblk block = {0};
  int place = open_folder(arg[0]), known = count == 3;
  if (place < 0) return complain("open", arg[0]);
  if (control(place, Q_XGETQSTAT, 0, &state) < 0 || !(state.qs_flags & FS_QUOTA_PDQ_ENFD)) return NOT_IN_FORCE;
  if (count < 3) return 0;
  uint32_t id = (uint32_t)strtoul(arg[1], NULL, 10);
  for (int i = 3; i < count; i++)
    if (belongs(arg[i], id, false) == 1) known = 1;
  /* A project that is nobody's yet takes nothing; what a crash left in the middle is known by its folders. */
  if (!known && control(place, Q_GETQUOTA, id, &block) == 0 && block.dqb_curspace > 0) return IN_USE;
  for (int i = 3; i < count; i++)
    if (belongs(arg[i], id, true) != 1) return complain("project", arg[i]);
  memset(&block, 0, sizeof block);
  block.dqb_bhardlimit = strtoull(arg[2], NULL, 10);
  block.dqb_valid = QIF_BLIMITS;
  return control(place, Q_SETQUOTA, id, &block) < 0 ? complain("limit", arg[1]) : 0;
}

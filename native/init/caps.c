/* Identities, capability sets and secure bits of init and its helpers. */
#include "caps.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/wait.h>

int become_inner_root(void) {
  if (!box.inside_root) return 0;
  if (!box.plan.deny_setgroups && setgroups(0, NULL) < 0) return failed("setgroups", "");
  if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) return failed("inner-root", "");
  return 0;
}

int keep_capabilities(uint64_t mask) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{0}, {0}};
  for (int i = 0; i < 2; i++) data[i].effective = data[i].permitted = (uint32_t)(mask >> (32 * i));
  return syscall(SYS_capset, &head, data) < 0 ? failed("capset", "") : 0;
}

/* No program that is ever executed here can gain a capability: the bounding set is empty and uid 0 means nothing. */
int lock_capabilities(void) {
  for (unsigned long cap = 0; cap < 64; cap++)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
      if (errno == EINVAL && cap > CAP_SETFCAP) break;
      return failed("bounding-set", "");
    }
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return failed("ambient-set", "");
  unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |
                       SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  return prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0 ? failed("securebits", "") : 0;
}

int become_agent(void) {
  const struct plan *p = &box.plan;
  if (box.inside_root) {
    if (!p->deny_setgroups && setgroups(0, NULL) < 0) return failed("setgroups", "agent");
    if (setresgid(p->gid, p->gid, p->gid) < 0) return failed("setresgid", "agent");
    if (setresuid(p->uid, p->uid, p->uid) < 0) return failed("setresuid", "agent");
  }
  return keep_capabilities(0);
}

void act_as_agent_on_files(bool on) {
  if (!box.inside_root) return;
  setfsgid(on ? box.plan.gid : 0);
  setfsuid(on ? box.plan.uid : 0);
}

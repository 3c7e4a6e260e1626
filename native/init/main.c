/* Process 1 of the sandbox: sets up what only the inside can, reports, then serves the control socket. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "caps.h"
#include "control.h"
#include "network.h"
#include "root.h"
#include "sync.h"

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
extern int unshare(int flags);

static int wait_for_go(int sync) {
  static struct sync m;
  do {
    if (sync_receive(sync, &m) < 0) return failed("launcher", "gone");
    if (m.type == SYNC_TREE && m.number < box.plan.steps && m.fds == 1) box.plan.step[m.number].tree = m.fd[0];
  } while (m.type != SYNC_GO);
  return 0;
}

static int silence(void) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return failed("null", "/dev/null");
  for (int fd = 0; fd < 3; fd++)
    if (dup2(null, fd) < 0) return failed("null", "dup");
  return null > 2 ? close(null) : 0;
}

static int detach_from_caller(void) {
  if (setsid() < 0) return failed("setsid", "");
  if (silence() < 0) return -1;
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  return 0;
}

static int send_sockets(int sync) {
  int fd[2], fds = 0;
  for (uint32_t i = 0; i < box.listeners && fds < 2; i++)
    if (box.listener[i].kind == SOCKET_CAPTURE) fd[fds++] = box.listener[i].fd;
  return sync_send(sync, SYNC_SOCKETS, 0, NULL, 0, fd, fds) < 0 ? failed("sk-lookup", "send") : 0;
}

static int take_link(int sync) {
  static struct sync m;
  if (sync_receive(sync, &m) < 0 || m.type != SYNC_LINK || m.fds != 1) return failed("sk-lookup", "no link");
  box.link = m.fd[0];
  return 0;
}

static int close_strangers(int sync) {
  int keep[LISTENERS_MAX + 16], n = 0;
  for (int fd = 0; fd < 3; fd++) keep[n++] = fd;
  const int own[] = {sync, box.control, box.link, box.freeze_file, box.freeze_state, box.freeze_procs, box.init_pid_fd};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) keep[n++] = own[i];
  for (uint32_t i = 0; i < box.listeners; i++) keep[n++] = box.listener[i].fd;
  close_except(keep, n);
  return 0;
}

static int set_up(int sync) {
  bool lookup = box.plan.mode == CAPTURE_SK_LOOKUP;
  box.link = -1;
  if (wait_for_go(sync) < 0 || detach_from_caller() < 0 || become_inner_root() < 0) return -1;
  if (sethostname(box.plan.hostname, strlen(box.plan.hostname)) < 0) return failed("hostname", box.plan.hostname);
  if (unshare(CLONE_NEWCGROUP) < 0) return failed("cgroup-namespace", "");
  if (build_network() < 0 || (lookup && send_sockets(sync) < 0)) return -1;
  /* Silent again: the first /dev/null is the host's. */
  if (build_root() < 0 || silence() < 0 || (lookup && take_link(sync) < 0)) return -1;
  box.init_pid_fd = (int)syscall(SYS_pidfd_open, 1, 0);
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return failed("dumpable", "");
  return close_strangers(sync);
}

static void set_up_layers(struct writer *w) {
  static const char *const modes[] = {"", "sk_lookup", "nft", "listener_per_port"}, *const freezers[] = {"signals", "cgroup v1", "cgroup v2"};
  char text[96];
  put_layer(w, "namespaces", true, "user, mount, pid, network, ipc, uts, cgroup");
  snprintf(text, sizeof text, "%u ids, inside %u is outside %u", box.plan.uid_map[0].count, box.plan.uid, outside_id(box.plan.uid_map, box.plan.uid_ranges, box.plan.uid));
  put_layer(w, "separate_ids", box.inside_root, text);
  put_layer(w, "root_view", true, box.overlay ? "own root, an image under a layer of its own" : "own root, read-only system folders");
  put_layer(w, "network_capture", true, modes[box.plan.mode]);
  put_layer(w, "ipv6", box.ipv6, box.ipv6 ? "captured" : "not available, nothing can be sent over it");
  snprintf(text, sizeof text, "%u cgroups", box.plan.cgroups);
  put_layer(w, "cgroup", box.plan.cgroups > 0, box.plan.cgroups > 0 ? text : "no cgroup was delegated");
  put_layer(w, "freezer", true, freezers[box.plan.freezer]);
}

int init_main(int sync) {
  static uint8_t space[4096];
  struct writer w = {space, 0, sizeof space, false};
  box.init_pid_fd = -1;
  if (set_up(sync) < 0) goto fail;
  put_u64(&w, box.netns_cookie);
  put_u8(&w, SET_UP_LAYERS);
  set_up_layers(&w);
  if (control_start(space + 9, w.size - 9) < 0) goto fail;
  if (sync_send(sync, SYNC_READY, 0, space, w.size, NULL, 0) < 0) return 1;
  close(sync);
  return control_run();
fail:
  sync_send(sync, SYNC_ERROR, 0, &failure, sizeof failure, NULL, 0);
  return 1;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "launch") == 0) return launch();
  if (argc >= 3 && strcmp(argv[1], "quota") == 0) return quota(argc - 2, argv + 2);
  if (argc == 2 && strcmp(argv[1], "--version") == 0) return puts("openshell-init protocol 1") < 0;
  fputs("usage: openshell-init launch < plan (answers on descriptor 3)\n", stderr);
  return 64;
}

/* Agent processes: starting, signalling, reaping. */
#ifndef OPENSHELL_SPAWN_H
#define OPENSHELL_SPAWN_H
#include <poll.h>

#include "common.h"

enum { SPAWNS_MAX = 256, AGENTS_MAX = 2048, MAIN_FDS = 3 };

/* The main process: everything a successor of the host needs. */
struct main_process {
  uint32_t handle;
  pid_t pid;
  int fd[MAIN_FDS], fds;   /* host ends: stdin, stdout, stderr; or the terminal */
  bool terminal, started, exited, signaled;
  uint32_t status;
};
extern struct main_process main_process;

bool is_helper(pid_t pid);
/* Started, or about to be. */
bool main_begun(void);
/* Forks the zygote and waits until it is restricted; copies its layers to `layers`. */
int zygote_start(struct bytes restrictions, struct writer *layers);
int identifier_start(void);
/* Passes a new connection to the identifier, which drops the previous one. */
int identifier_attach(int socket);
/* Starts a process; the answer for request `id` follows once exec is done or failed. */
int spawn_begin(uint32_t id, bool main, struct bytes request);
int spawn_signal(uint32_t handle, int number, bool group);
/* The host is gone: exec processes and their sessions are killed, unanswered requests forgotten. Waits ≤ 20 ms for
 * them to be gone, since a frozen process does not die. */
void spawn_host_gone(void);
/* With a single id the agent can stop the zygote: one that does not fork for 5 s is replaced. */
void spawn_watch(int64_t now, bool frozen);
bool spawn_waits(void);
/* Poll entries for the zygote and the report pipes; then what they say. */
int spawn_poll(struct pollfd *list);
bool spawn_events(const struct pollfd *list, int count);
/* True when more are waiting: an agent that makes orphans without end must not keep the host waiting. */
bool reap(void);
#endif

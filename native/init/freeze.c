/* Freezes and thaws the workload: cgroup v2, the v1 freezer, or signals. */
#include "freeze.h"

#include <dirent.h>
#include <signal.h>
#include <time.h>

#include "spawn.h"

enum { PROCESSES_MAX = 16384, LEVELS_MAX = 64, ROUNDS_MAX = 64, ROUND_MS_MAX = 10, SETTLE_MS = 1000 };

bool read_process(pid_t pid, struct proc_entry *entry) {
  char path[32], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  char *at = strrchr(text, ')');
  int group, tty;
  entry->pid = pid;
  return at != NULL && sscanf(at + 1, " %c %d %d %d %d %d", &entry->state, &entry->parent, &group, &entry->session, &tty, &entry->foreground) == 6;
}

int list_processes(struct proc_entry **list) {
  static struct proc_entry table[PROCESSES_MAX];
  DIR *dir = opendir("/proc");
  int count = 0;
  if (dir == NULL) return -1;
  for (struct dirent *e; (e = readdir(dir)) != NULL && count < PROCESSES_MAX;) {
    pid_t pid = atoi(e->d_name);
    if (pid > 1 && !is_helper(pid) && read_process(pid, &table[count])) count++;
  }
  closedir(dir);
  *list = table;
  return count;
}

void pause_ms(int ms) {
  struct timespec wait = {0, ms * 1000000L};
  nanosleep(&wait, NULL);
}

static bool is_stopped(const struct proc_entry *p) { return p->state == 'T' || p->state == 't' || p->state == 'Z' || p->state == 'X'; }

/* Stops the children of every process in `parent`, level by level: a shell that saw its job stop before itself would
 * report it as suspended by the user. */
static void stop_level(struct proc_entry *list, int count, pid_t parent, int depth) {
  for (int i = 0; i < count; i++) {
    if (list[i].parent != parent) continue;
    if (!is_stopped(&list[i])) kill(list[i].pid, SIGSTOP);
    if (depth < LEVELS_MAX) stop_level(list, count, list[i].pid, depth + 1);
  }
}

static int freeze_by_signals(bool on) {
  struct proc_entry *list;
  if (!on) return kill(-1, SIGCONT) < 0 && errno != ESRCH ? failed("thaw", "SIGCONT") : 0;
  for (int round = 0; round < ROUNDS_MAX; round++) {
    int running = 0, count = list_processes(&list);
    if (count < 0) return failed("freeze", "/proc");
    stop_level(list, count, 1, 0);
    /* Everybody counts: deeper levels, and who lost its parent while the list was made. */
    for (int i = 0; i < count; i++) {
      if (is_stopped(&list[i])) continue;
      kill(list[i].pid, SIGSTOP);
      /* Who waits inside the kernel (D) meets the signal before it runs on: a vfork parent waits for its stopped child. */
      if (list[i].state != 'D') running++;
    }
    if (running == 0) return 0;
    /* On a busy machine a signal takes its time; 0.6 s in all. */
    pause_ms(round < ROUND_MS_MAX ? round + 1 : ROUND_MS_MAX);
  }
  errno = EBUSY;
  return failed("freeze", "processes keep running");
}

static bool settled(bool on) {
  char text[128];
  bool v1 = box.plan.freezer == FREEZER_V1;
  ssize_t n = pread(box.freeze_state, text, sizeof text - 1, 0);
  if (n <= 0) return false;
  text[n] = 0;
  return strstr(text, v1 ? (on ? "FROZEN" : "THAWED") : (on ? "frozen 1" : "frozen 0")) != NULL;
}

int freeze_workload(bool on) {
  if (box.plan.freezer == FREEZER_SIGNALS) return freeze_by_signals(on);
  const char *text = box.plan.freezer == FREEZER_V1 ? (on ? "FROZEN" : "THAWED") : (on ? "1" : "0");
  for (int waited = 0; waited < SETTLE_MS; waited++) {
    /* Again each time: version 1 may stay in FREEZING for ever when processes fork meanwhile. */
    if (pwrite(box.freeze_file, text, strlen(text), 0) < 0) return failed(on ? "freeze" : "thaw", "cgroup");
    if (settled(on)) return 0;
    pause_ms(1);
  }
  errno = ETIMEDOUT;
  return failed(on ? "freeze" : "thaw", "cgroup does not settle");
}

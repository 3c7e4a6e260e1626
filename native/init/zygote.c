/* The restricted process that every agent process is forked from: one Landlock domain for the whole sandbox. */
#include "zygote.h"

#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "caps.h"
#include "fds.h"
#include "probe.h"
#include "restrict.h"

static _Noreturn void refuse(int report, const char *step) {
  struct spawn_failure f = {.error = errno};
  snprintf(f.step, sizeof f.step, "%s", step);
  (void)!write(report, &f, sizeof f);
  _exit(127);
}

/* execve along PATH as execvp does it, without falling back to a shell. */
static void execute(char **argv, char **env) {
  const char *path = "/usr/local/bin:/usr/bin:/bin";
  char file[4096];
  if (strchr(argv[0], '/') != NULL) {
    execve(argv[0], argv, env);
    return;
  }
  for (char **e = env; *e != NULL; e++)
    if (strncmp(*e, "PATH=", 5) == 0) path = *e + 5;
  int error = ENOENT;
  for (;;) {
    int length = (int)strcspn(path, ":");
    if (snprintf(file, sizeof file, "%.*s%s%s", length, path, length > 0 ? "/" : "", argv[0]) < (int)sizeof file) {
      execve(file, argv, env);
      if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
      if (errno == EACCES) error = EACCES;
    }
    if (path[length] == 0) break;
    path += length + 1;
  }
  errno = error;
}

static char **get_strings(struct reader *r) {
  uint32_t count = get_count(r, 65536);
  char **list = calloc((size_t)count + 1, sizeof *list);
  for (uint32_t i = 0; i < count && list != NULL; i++) list[i] = (char *)get_string(r);
  return list;
}

/* fd: request, stdin, stdout, stderr (one terminal three times), report. Runs in the new process. */
static _Noreturn void become_program(const int *fd) {
  struct stat st;
  int report = fd[SPAWN_FDS - 1];
  sigset_t none;
  if (fstat(fd[0], &st) < 0) refuse(report, "request");
  const uint8_t *data = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd[0], 0);
  if (data == MAP_FAILED) refuse(report, "request");
  struct reader r = {data, data + st.st_size, false};
  uint8_t kind = get_u8(&r);
  get_u32(&r); /* window size: set on the terminal already */
  const char *folder = get_string(&r);
  char **argv = get_strings(&r), **env = get_strings(&r);
  errno = EINVAL;
  if (r.bad || argv == NULL || env == NULL || argv[0] == NULL) refuse(report, "request");
  setsid();
  if (kind == STDIO_PTY && ioctl(fd[1], TIOCSCTTY, 0) < 0) refuse(report, "terminal");
  for (int i = 0; i < 3; i++)
    if (dup2(fd[1 + i], i) < 0) refuse(report, "stdio");
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (become_agent() < 0) refuse(report, failure.step);
  if (chdir(folder) < 0) refuse(report, "cwd");
  if (kind == STDIO_PROBE) {
    close_except((const int[]){0, 1, 2}, 3);
    run_canaries(argv);
  }
  execute(argv, env);
  refuse(report, "exec");
}

static void serve(int socket) {
  for (;;) {
    uint32_t sequence;
    int fd[FDS_MAX], fds;
    struct iovec iov = {&sequence, sizeof sequence};
    ssize_t n = receive_fds(socket, &iov, 1, fd, &fds, 0);
    if (n != sizeof sequence) _exit(0);
    struct spawn_answer answer = {sequence, -EBADF};
    if (fds == SPAWN_FDS) {
      /* CLONE_PARENT: init is the parent, so init alone reaps and knows every exit status. */
      answer.pid = (int)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
      if (answer.pid == 0) become_program(fd);
      if (answer.pid < 0) answer.pid = -errno;
    }
    for (int i = 0; i < fds; i++) close(fd[i]);
    if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0) _exit(1);
  }
}

_Noreturn void zygote_main(int socket, struct bytes restrictions) {
  static uint8_t space[2048];
  struct writer layers = {space, 0, sizeof space, false};
  const int keep[] = {0, 1, 2, socket, box.freeze_procs};
  close_except(keep, 5);
  if (box.freeze_procs >= 0 && write(box.freeze_procs, "0", 1) != 1) failed("freezer-join", "");
  if (box.freeze_procs >= 0) close(box.freeze_procs);
  if (failure.step[0] == 0) apply_restrictions(restrictions, &layers);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (failure.step[0] != 0 || layers.bad) {
    send(socket, &failure, sizeof failure, MSG_NOSIGNAL);
    _exit(1);
  }
  /* The first byte tells layers from a failure: a failure starts with its step's name, layers with a zero here. */
  struct iovec iov[2] = {{"", 1}, {space, layers.size}};
  if (send_fds(socket, iov, 2, NULL, 0, 0) < 0) _exit(1);
  serve(socket);
  _exit(0);
}

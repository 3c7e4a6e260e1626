/* Set-up messages with descriptors; also the generic sendmsg and recvmsg with control data that other files use. */
#include "sync.h"

#include <sys/socket.h>

#include "fds.h"

ssize_t send_fds(int socket, const struct iovec *iov, int count, const int *fd, int fds, int flags) {
  union { char raw[CMSG_SPACE(sizeof(int) * FDS_MAX)]; struct cmsghdr align; } control;
  struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
  if (fds > 0) {
    memset(&control, 0, sizeof control);
    m.msg_control = control.raw;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fds);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fds);
    memcpy(CMSG_DATA(c), fd, sizeof(int) * (size_t)fds);
  }
  ssize_t n;
  do n = sendmsg(socket, &m, flags | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n;
}

ssize_t receive_fds(int socket, const struct iovec *iov, int count, int *fd, int *fds, int flags) {
  union { char raw[CMSG_SPACE(sizeof(int) * FDS_MAX)]; struct cmsghdr align; } control;
  struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count, .msg_control = control.raw, .msg_controllen = sizeof control.raw};
  ssize_t n;
  *fds = 0;
  do n = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0) return n;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    int got = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fd, CMSG_DATA(c), sizeof(int) * (size_t)got);
    *fds = got;
  }
  /* A full descriptor table delivers fewer without an error. */
  if (m.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
    for (int i = 0; i < *fds; i++) close(fd[i]);
    *fds = 0;
    errno = EMSGSIZE;
    return -1;
  }
  return n;
}

int sync_send(int socket, enum sync_type type, uint32_t number, const void *data, size_t size, const int *fd, int fds) {
  uint32_t head[2] = {type, number};
  struct iovec iov[2] = {{head, sizeof head}, {(void *)data, size}};
  return send_fds(socket, iov, 2, fd, fds, 0) < 0 ? -1 : 0;
}

int sync_receive(int socket, struct sync *message) {
  struct { uint32_t type, number; } head;
  struct iovec iov[2] = {{&head, sizeof head}, {message->data, sizeof message->data}};
  int fd[FDS_MAX];
  ssize_t n = receive_fds(socket, iov, 2, fd, &message->fds, 0);
  if (n < (ssize_t)sizeof head || message->fds > SYNC_FDS) {
    if (n >= 0) errno = ECONNRESET;
    return -1;
  }
  memcpy(message->fd, fd, sizeof(int) * (size_t)message->fds);
  message->type = head.type;
  message->number = head.number;
  message->size = (uint32_t)((size_t)n - sizeof head);
  return 0;
}

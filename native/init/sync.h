/* Messages between launcher and init while the sandbox is set up: SOCK_SEQPACKET, one message each, ≤ 4 descriptors. */
#ifndef OPENSHELL_SYNC_H
#define OPENSHELL_SYNC_H
#include "common.h"

enum { SYNC_MAX = 8192, SYNC_FDS = 4 };
enum sync_type { SYNC_TREE = 1, SYNC_GO, SYNC_SOCKETS, SYNC_LINK, SYNC_READY, SYNC_ERROR };
struct sync {
  uint32_t type, number;   /* number: index of a step */
  uint32_t size;
  uint8_t data[SYNC_MAX];
  int fd[SYNC_FDS];
  int fds;
};

int sync_send(int socket, enum sync_type type, uint32_t number, const void *data, size_t size, const int *fd, int fds);
int sync_receive(int socket, struct sync *message);
#endif

/* Messages with descriptors over Unix sockets. */
#ifndef OPENSHELL_FDS_H
#define OPENSHELL_FDS_H
#include <sys/uio.h>

#include "common.h"

enum { FDS_MAX = 16 };

ssize_t send_fds(int socket, const struct iovec *iov, int count, const int *fd, int fds, int flags);
/* `fd` has room for FDS_MAX; received descriptors are close-on-exec. Truncated control data is EMSGSIZE. */
ssize_t receive_fds(int socket, const struct iovec *iov, int count, int *fd, int *fds, int flags);
#endif

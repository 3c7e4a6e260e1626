/* Frames of the control protocol; packages/boundary/src/local/frames.ts is its other half. */
#ifndef OPENSHELL_FRAMES_H
#define OPENSHELL_FRAMES_H
#include "common.h"
#include "fds.h"

enum { FRAME_HEAD = 16, FRAME_MAX = 65536, MESSAGE_MAX = 4 << 20, QUEUE_MAX = 4 << 20, PROTOCOL_REVISION = 1 };
enum { FLAG_MORE = 1 };    /* the message goes on in the next frame */
enum frame_type {
  FRAME_HELLO = 1, FRAME_SOCKETS, FRAME_CONFIRM, FRAME_MAIN, FRAME_SPAWN, FRAME_SIGNAL, FRAME_CLOSE_STDIN, FRAME_ACK_EXIT,
  FRAME_IDENTIFIER, FRAME_IDENTIFY, FRAME_SAVE, FRAME_LOAD, FRAME_FREEZE, FRAME_THAW, FRAME_RESUME, FRAME_TERMINATE,
  FRAME_ATTACH_MAIN, FRAME_READY = 64, FRAME_EXIT, FRAME_REPLACED, FRAME_OK = 128, FRAME_ERROR
};

/* length, type, descriptors, request id, flags; little endian. */
void frame_head(uint8_t *head, size_t size, uint16_t type, uint16_t fds, uint32_t id, uint32_t flags);

/* One end of a connection: a partly received message, and what could not be sent yet. */
struct pending_frame;
struct channel {
  int fd;
  uint8_t *input;          /* a whole message, grown to limit at most */
  size_t input_size, input_capacity, frame_left;
  uint8_t head[FRAME_HEAD];
  size_t head_size;
  uint16_t type;
  uint32_t id, flags;
  struct pending_frame *first, *last;
  size_t queued;
  size_t limit;            /* of a message; MESSAGE_MAX at most */
  int64_t since;           /* when the first byte of the message in progress came */
};

/* 1: a message is complete in input (type, id set; call channel_next after use); 0: nothing more now; -1: closed or broken. */
int channel_receive(struct channel *c);
void channel_next(struct channel *c);
/* Sends or queues; the descriptors stay the caller's, duplicates are queued. -1: peer too slow or gone. */
int channel_send(struct channel *c, uint16_t type, uint32_t id, const void *data, size_t size, const int *fd, int fds);
int channel_flush(struct channel *c);
void channel_close(struct channel *c);
#endif

/* The zygote: its messages, its life. */
#ifndef OPENSHELL_ZYGOTE_H
#define OPENSHELL_ZYGOTE_H
#include "common.h"

/* STDIO_PROBE: pipes, and argv are canaries that the child tries in place of executing a program. */
enum { STDIO_PIPES = 0, STDIO_PTY = 1, STDIO_PROBE = 2, SPAWN_FDS = 5 };
/* Request: a u32 sequence number and SPAWN_FDS descriptors; answer: pid, or a negative errno. */
struct spawn_answer { uint32_t sequence; int32_t pid; };
/* Written to the report pipe by a child that could not become its program; exec closes the pipe otherwise. */
struct spawn_failure { int32_t error; char step[32]; };

_Noreturn void zygote_main(int socket, struct bytes restrictions);
#endif

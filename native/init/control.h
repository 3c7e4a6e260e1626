/* The control socket: who may attach, what a host may ask, and the main loop. */
#ifndef OPENSHELL_CONTROL_H
#define OPENSHELL_CONTROL_H
#include "common.h"

enum { SET_UP_LAYERS = 7 };

/* Starts listening; `layers` are the ones set up so far. */
int control_start(const uint8_t *layers, size_t size);
/* Serves until the sandbox ends; returns init's exit status. */
int control_run(void);
/* To the attached host, if any. */
void control_answer(uint32_t id, const struct writer *w, const int *fd, int fds);
void control_error(uint32_t id, const char *step, const char *detail);  /* errno says why */
void control_event(uint16_t type, const struct writer *w);
#endif

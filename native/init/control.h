/* The control socket: who may attach, what a host may ask, and the main loop. */
#ifndef OPENSHELL_CONTROL_H
#define OPENSHELL_CONTROL_H
#include "common.h"

enum { SET_UP_LAYERS = 7 };

int control_start(const uint8_t *layers, size_t size);
int control_run(void);
#endif

/* The identifier: which processes own a socket. A process of its own that shares nothing with spawning and reaping. */
#ifndef OPENSHELL_IDENTIFY_H
#define OPENSHELL_IDENTIFY_H
#include "common.h"

_Noreturn void identify_main(int socket, struct bytes unused);
#endif

/* Routes and capture sockets of the sandbox's network namespace. */
#ifndef OPENSHELL_NETWORK_H
#define OPENSHELL_NETWORK_H
#include "common.h"

enum { PROXY_PORT = 3128 };

/* Applies the plan's messages, then fills box.listener and box.netns_cookie. */
int build_network(void);
#endif

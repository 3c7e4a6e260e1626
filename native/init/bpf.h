/* The sk_lookup program that steers every TCP connection to the capture sockets. */
#ifndef OPENSHELL_BPF_H
#define OPENSHELL_BPF_H
#include "common.h"

/* Map entry 0 is the IPv4 listener, 1 the IPv6 one. Returns the link: the program lives as long as it is open. */
int attach_lookup(const int *socket, int sockets, int netns);
#endif

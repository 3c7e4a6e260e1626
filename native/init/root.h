/* The sandbox's file system. */
#ifndef OPENSHELL_ROOT_H
#define OPENSHELL_ROOT_H
#include "common.h"

/* /dev/shm of a sandbox; a tmpfs step on the same target replaces it. */
enum { SHM_BYTES = 256 << 20 };

/* Clones the source of a bind or volume step into a detached mount with its flags; `userns` ≥ 0 makes it idmapped. */
int open_tree_for(struct step *s, int userns);
int seal(const char *target);
/* In the sandbox's own namespaces: carries out every step, then changes root. */
int build_root(void);
#endif

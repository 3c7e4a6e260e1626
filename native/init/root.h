/* The sandbox's file system. */
#ifndef OPENSHELL_ROOT_H
#define OPENSHELL_ROOT_H
#include "common.h"

/* Clones the source of a bind or volume step into a detached mount with its flags; `userns` ≥ 0 makes it idmapped. */
int open_tree_for(struct step *s, int userns);
/* In the sandbox's own namespaces: carries out every step, then changes root. */
int build_root(void);
#endif

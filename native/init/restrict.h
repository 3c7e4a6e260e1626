/* What binds every agent process. */
#ifndef OPENSHELL_RESTRICT_H
#define OPENSHELL_RESTRICT_H
#include "common.h"

enum { RESTRICTION_LAYERS = 4 };

/* Applies a confirm message to the calling process for good and describes RESTRICTION_LAYERS layers. */
int apply_restrictions(struct bytes payload, struct writer *layers);
#endif

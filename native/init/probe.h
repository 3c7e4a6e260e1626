/* Canaries of the isolation self-test. */
#ifndef OPENSHELL_PROBE_H
#define OPENSHELL_PROBE_H
#include "common.h"

/* Tries each, at most 64, and writes a line for each to standard output: the negative errno, 0 for done, or a value. */
_Noreturn void run_canaries(char **canaries);
#endif

#include "control.h"
int control_start(const uint8_t *layers, size_t size) { (void)layers; (void)size; return 0; }
int control_run(void) { for (;;) pause(); }

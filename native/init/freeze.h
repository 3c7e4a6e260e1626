/* Freezing the workload, and looking at its processes. */
#ifndef OPENSHELL_FREEZE_H
#define OPENSHELL_FREEZE_H
#include "common.h"

struct proc_entry { pid_t pid, parent, session, foreground; char state; };
/* Processes of the sandbox but init and its helpers; -1 when /proc cannot be read. The list is static. */
int list_processes(struct proc_entry **list);
bool read_process(pid_t pid, struct proc_entry *entry);
int freeze_workload(bool on);
void pause_ms(int ms);
#endif

/* Identities, capability sets and secure bits. */
#ifndef OPENSHELL_CAPS_H
#define OPENSHELL_CAPS_H
#include "common.h"

#define CAPS_INIT (1ULL << 5 /* KILL */ | 1ULL << 6 /* SETGID */ | 1ULL << 7 /* SETUID */ | 1ULL << 8 /* SETPCAP */ | 1ULL << 19 /* SYS_PTRACE */)
#define CAPS_ZYGOTE (1ULL << 6 | 1ULL << 7)
#define CAPS_IDENTIFIER (1ULL << 6 | 1ULL << 7 | 1ULL << 19)

int become_inner_root(void);
int keep_capabilities(uint64_t mask);
int lock_capabilities(void);
/* For good: uid and gid of the agent, no group, no capability. */
int become_agent(void);
/* Files made or opened meanwhile are the agent's; signals and ptrace checks keep using the real identity. */
void act_as_agent_on_files(bool on);
#endif

// SPDX-License-Identifier: Apache-2.0
//
// An allocator that counts and fails on demand. Everything that is to use it is compiled with
// -include failing_memory.h, one file with failing_memory.c.

#ifndef FAILING_MEMORY_H
#define FAILING_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

void *test_realloc(void *block, size_t bytes);
void test_free(void *block);
#define SAM_REALLOC test_realloc
#define SAM_FREE test_free

extern long long live_blocks;
extern long long allocations; // asked for so far
extern long long fail_at;     // number of the allocation that fails; -1: none does
extern bool fail_on;          // so do all after it

#endif

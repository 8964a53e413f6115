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
void *test_mmap(void *address, size_t bytes, int protection, int flags, int file, long offset);
int test_mprotect(void *address, size_t bytes, int protection);
void *test_mremap(void *address, size_t old_bytes, size_t bytes, int flags, void *to);
int test_munmap(void *address, size_t bytes);
#define SAM_REALLOC test_realloc
#define SAM_FREE test_free
#define SAM_MMAP test_mmap
#define SAM_MPROTECT test_mprotect
#define SAM_MREMAP test_mremap
#define SAM_MUNMAP test_munmap
#define SAM_LARGE test_large
#define SAM_TABLE test_table
#define THREADS_FED test_fed
#define THREADS_DRAFTED test_drafted
#define THREADS_ROWS test_fed
#define SAM_SPACE ((size_t)1 << 30) // an emulator keeps a record of each page that is reserved

// Limits of memory.h, sam.h and threads.h. Smaller ones let a program reach all paths with few tokens and rows.
extern size_t test_large;
extern unsigned test_table, test_fed, test_drafted;

extern _Atomic long long live_blocks;
extern _Atomic long long allocations; // requested so far
extern long long fail_at;             // number of the allocation that fails; -1: none does
extern bool keep_failing;             // whether all later ones fail too

#endif

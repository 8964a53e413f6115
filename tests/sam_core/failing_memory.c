// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE // mremap

#include "failing_memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

_Atomic long long live_blocks, allocations;
long long fail_at = -1;
bool keep_failing;
size_t test_large = 1 << 20;
unsigned test_table = 32768, test_fed = 64, test_drafted = 16;

static void *_Atomic maps[1 << 10]; // start addresses

static bool fails(void) {
    long long number = allocations++;
    return fail_at >= 0 && (keep_failing ? number >= fail_at : number == fail_at);
}

// Replaces `block` by `other` in the list of maps. Returns whether `block` was there.
static bool replace(void *block, void *other) {
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        void *there = block;
        if (atomic_compare_exchange_strong(&maps[i], &there, other))
            return true;
    }
    return false;
}

void *test_realloc(void *block, size_t bytes) {
    if (fails())
        return NULL;
    void *resized = realloc(block, bytes);
    live_blocks += resized && !block;
    return resized;
}

void test_free(void *block) {
    live_blocks -= block != NULL;
    free(block);
}

void *test_mmap(void *address, size_t bytes, int protection, int flags, int file, long offset) {
    if (fails())
        return MAP_FAILED;
    void *map = mmap(address, bytes, protection, flags, file, offset);
    if (map != MAP_FAILED && !replace(NULL, map))
        abort();
    live_blocks += map != MAP_FAILED;
    return map;
}

int test_mprotect(void *address, size_t bytes, int protection) {
    return fails() ? -1 : mprotect(address, bytes, protection);
}

void *test_mremap(void *address, size_t old_bytes, size_t bytes, int flags, void *to) {
    return fails() ? MAP_FAILED : mremap(address, old_bytes, bytes, flags, to);
}

int test_munmap(void *address, size_t bytes) {
    live_blocks -= replace(address, NULL);
    return munmap(address, bytes);
}

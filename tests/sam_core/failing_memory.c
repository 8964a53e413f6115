// SPDX-License-Identifier: Apache-2.0

#include "failing_memory.h"

#include <stdlib.h>

long long live_blocks, allocations, fail_at = -1;
bool fail_on;

void *test_realloc(void *block, size_t bytes) {
    long long number = allocations++;
    if (fail_at >= 0 && (fail_on ? number >= fail_at : number == fail_at))
        return NULL;
    void *resized = realloc(block, bytes);
    live_blocks += resized && !block;
    return resized;
}

void test_free(void *block) {
    live_blocks -= block != NULL;
    free(block);
}

// SPDX-License-Identifier: Apache-2.0
//
// Blocks of memory with an account and a limit. Small blocks come from malloc. A block of more than SAM_LARGE
// bytes lies at the beginning of reserved address space: it grows in place and shrinks from its end, so the
// time of a resize depends only on the difference. Reserved space uses no memory and does not count against a
// system's commit limit. At first 64 times SAM_LARGE are reserved; a block that outgrows this moves once, by
// its page tables, to space for SAM_MAX_PLACES elements. Less is reserved if there is less address space.
// Linux only.
//
// Not thread-safe: the owner serialises all calls on one sam_memory.

#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// All memory comes from these functions; a test may define them to make allocations fail.
#ifndef SAM_REALLOC
#include <stdlib.h>
#define SAM_REALLOC realloc
#define SAM_FREE free
#define SAM_MMAP mmap
#define SAM_MPROTECT mprotect
#define SAM_MREMAP mremap
#define SAM_MUNMAP munmap
#endif

#ifndef SAM_LARGE
#define SAM_LARGE ((size_t)1 << 20) // bytes
#endif
#ifndef SAM_SPACE
#define SAM_SPACE ((size_t)32 << 30) // bytes: room for SAM_MAX_PLACES of the largest elements
#endif
#define SAM_MAX_PLACES (1u << 30) // an array refuses to grow beyond this

// The account of one owner's blocks.
typedef struct {
    size_t used;                  // bytes allocated now
    size_t limit;                 // bytes that may be allocated
    bool (*reclaim)(void *owner); // frees something dispensable, or returns false; may be NULL
    void *owner;                  // passed to reclaim
    uint64_t work;                // states visited so far, for tests of the complexity
} sam_memory;

// Resizes `block` from old_bytes to new_bytes (0: frees it and returns NULL) and updates the account; calls
// reclaim while the limit would be exceeded. Returns NULL on failure: the block is valid and accounted as
// before.
void *sam_resize(sam_memory *memory, void *block, size_t old_bytes, size_t new_bytes);

// Returns the pages of a block that is about to be freed to the system. Otherwise, when many such blocks are
// freed, the last call of free would return the pages of all of them.
void sam_give_back(void *block, size_t bytes);

// Grows an array of `size` elements of `element` bytes so that it holds `more` further ones; by an eighth or
// SAM_LARGE, whichever is less, if that is more. Returns the array, NULL on failure.
void *sam_grow(sam_memory *memory, void *array, uint32_t size, uint32_t more, uint32_t *capacity,
               size_t element);

// Prefetches a cache line. gcc takes a function that does nothing but prefetch for one without effect and drops
// calls of it; the empty statement prevents that.
static inline void sam_prefetch(const void *memory) {
    __builtin_prefetch(memory);
    __asm__ volatile("");
}

#endif

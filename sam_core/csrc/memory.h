// SPDX-License-Identifier: Apache-2.0
//
// Blocks of memory with an account and a limit. Small blocks are malloc's. A block of more than SAM_LARGE
// bytes lies at the beginning of address space that is reserved ahead: it grows there without being copied
// and shrinks there from its end, so resizing takes a time that depends on the difference alone. Reserved
// space takes no memory, nor any of what a system without overcommit may promise. At first it is 64 times
// SAM_LARGE; a block that outgrows this moves once, by its page tables, to where SAM_MAX_PLACES elements have
// room. Where there is less address space, less is reserved. Linux only.
//
// Not thread-safe: the owner serialises all calls on one sam_memory.

#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The only places where memory comes from; a test may define them all to make allocations fail.
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

// What the blocks of one owner may take together.
typedef struct {
    size_t used;                    // bytes allocated now
    size_t limit;                   // bytes that may be allocated
    bool (*make_room)(void *owner); // frees something the owner can spare, or returns false; may be NULL
    void *owner;                    // passed to make_room
    uint64_t work;                  // states visited so far: lets a test see the complexity
} sam_memory;

// Resizes `block` from old_bytes to new_bytes (0: frees it and returns NULL), keeping the account and asking
// make_room while the limit is exceeded. On failure NULL is returned and the block is still valid and
// accounted as before.
void *sam_resize(sam_memory *memory, void *block, size_t old_bytes, size_t new_bytes);

// Gives back the pages of a block that is freed next. Where many such blocks are freed, free would give back
// those of all of them in one call, the last.
void sam_give_back(void *block, size_t bytes);

// Grows an array of `size` elements of `element` bytes to hold `more` further ones, by an eighth or
// SAM_LARGE, whichever is less, if that is more. Returns the array, NULL on failure.
void *sam_grow(sam_memory *memory, void *array, uint32_t size, uint32_t more, uint32_t *capacity,
               size_t element);

#endif

// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE // mremap

#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// ---- large blocks

enum {
    BEFORE = 64,         // bytes from the beginning of the usable space to the block
    UNIT = 1 << 16,      // bytes, a multiple of every page's
    ALIGNMENT = 2 << 20, // bytes that one page table maps: aligned space moves by whole tables
};

// Header of a reserved range, at the beginning of its usable space.
typedef struct {
    char *start;
    size_t bytes;
} reservation;

static reservation *reservation_of(void *block) { return (reservation *)((char *)block - BEFORE); }

static size_t usable(size_t bytes) { return (BEFORE + bytes + UNIT - 1) / UNIT * UNIT; }

// Reserves space for a block of at least `bytes`. Returns the beginning of the usable space, or NULL.
static char *reserve(size_t bytes, reservation *reserved) {
    size_t min_size = usable(bytes), size = 64 * SAM_LARGE;
    if (min_size > size)
        size = SAM_SPACE;
    for (; size >= min_size; size /= 2) {
        reserved->bytes = size + ALIGNMENT;
        reserved->start = SAM_MMAP(NULL, reserved->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (reserved->start != MAP_FAILED)
            return reserved->start + (ALIGNMENT - (uintptr_t)reserved->start % ALIGNMENT) % ALIGNMENT;
    }
    return NULL;
}

static bool make_usable(char *begin, size_t bytes) {
    return !bytes || !SAM_MPROTECT(begin, bytes, PROT_READ | PROT_WRITE);
}

static void *new_large(size_t bytes) {
    reservation reserved;
    char *begin = reserve(bytes, &reserved);
    if (!begin)
        return NULL;
    if (!make_usable(begin, usable(bytes))) {
        SAM_MUNMAP(reserved.start, reserved.bytes);
        return NULL;
    }
    *(reservation *)begin = reserved;
    return begin + BEFORE;
}

static void free_large(void *block) {
    reservation reserved = *reservation_of(block);
    SAM_MUNMAP(reserved.start, reserved.bytes);
}

// Moves a block that has outgrown its space with mremap, without copying. Returns NULL on failure.
static void *move_large(void *block, size_t old_bytes, size_t bytes) {
    reservation reserved, unused = *reservation_of(block);
    char *from = (char *)block - BEFORE, *to = reserve(bytes, &reserved);
    size_t size = usable(old_bytes);
    if (!to)
        return NULL;
    if (!make_usable(to + size, usable(bytes) - size)) {
        SAM_MUNMAP(reserved.start, reserved.bytes);
        return NULL;
    }
    bool moved = SAM_MREMAP(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
    char *hole = from; // mremap has unmapped this; another thread may use it now
    if (moved) {
        *(reservation *)to = reserved;
    } else { // mremap can fail in a forked process
        unused = reserved;
        hole = to;
    }
    SAM_MUNMAP(unused.start, (size_t)(hole - unused.start));
    SAM_MUNMAP(hole + size, (size_t)(unused.start + unused.bytes - hole) - size);
    return moved ? to + BEFORE : NULL;
}

// Resizes a large block to another large size. Returns NULL on failure: the block is unchanged.
static void *resize_large(void *block, size_t old_bytes, size_t bytes) {
    reservation *reserved = reservation_of(block);
    char *begin = (char *)block - BEFORE;
    size_t old = usable(old_bytes), new = usable(bytes);
    size_t space = (size_t)(reserved->start + reserved->bytes - begin);
    if (new < old) {
        SAM_MUNMAP(begin + new, space - new);
        reserved->bytes -= space - new;
    } else if (new <= space) {
        return make_usable(begin + old, new - old) ? block : NULL;
    } else {
        void *moved = move_large(block, old_bytes, bytes);
        if (moved)
            return moved;
        moved = new_large(bytes);
        if (!moved)
            return NULL;
        memcpy(moved, block, old_bytes);
        free_large(block);
        return moved;
    }
    return block;
}

// ---- any block

static void free_block(void *block, size_t bytes) {
    if (bytes > SAM_LARGE)
        free_large(block);
    else if (block)
        SAM_FREE(block);
}

static void *resize_block(void *block, size_t old_bytes, size_t bytes) {
    bool was_large = old_bytes > SAM_LARGE, large = bytes > SAM_LARGE;
    if (was_large && large)
        return resize_large(block, old_bytes, bytes);
    if (!was_large && !large)
        return SAM_REALLOC(block, bytes);
    void *resized = large ? new_large(bytes) : SAM_REALLOC(NULL, bytes);
    if (resized && block) {
        memcpy(resized, block, old_bytes < bytes ? old_bytes : bytes);
        free_block(block, old_bytes);
    }
    return resized;
}

void *sam_resize(sam_memory *memory, void *block, size_t old_bytes, size_t new_bytes) {
    if (new_bytes == 0) {
        free_block(block, old_bytes);
        memory->used -= old_bytes;
        return NULL;
    }
    while (new_bytes > old_bytes &&
           (memory->used > memory->limit || new_bytes - old_bytes > memory->limit - memory->used)) {
        if (!memory->reclaim || !memory->reclaim(memory->owner))
            return NULL;
    }
    void *resized = resize_block(block, old_bytes, new_bytes);
    if (resized)
        memory->used = memory->used - old_bytes + new_bytes;
    return resized;
}

void sam_give_back(void *block, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)block;
    uintptr_t first = (at + page - 1) / page * page, end = (at + bytes) / page * page;
    if (bytes <= SAM_LARGE && first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

void *sam_grow(sam_memory *memory, void *array, uint32_t size, uint32_t more, uint32_t *capacity,
               size_t element) {
    if (more <= *capacity - size)
        return array;
    if (size >= SAM_MAX_PLACES || more > SAM_MAX_PLACES - size)
        return NULL;
    uint32_t step = *capacity / 8, max_step = (uint32_t)(SAM_LARGE / element);
    uint32_t larger = *capacity + (step < max_step ? step : max_step) + 4;
    if (larger < size + more)
        larger = size + more;
    void *grown = sam_resize(memory, array, *capacity * element, larger * element);
    if (grown)
        *capacity = larger;
    return grown;
}

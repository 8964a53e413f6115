// SPDX-License-Identifier: Apache-2.0
//
// What the C programs of the tests share: a check that ends the program with a line on stderr, and numbers
// that are the same on every platform.

#ifndef CHECK_H
#define CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

static uint32_t random_state = 1;

static inline uint32_t draw(uint32_t below) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 4) * below) >> 28);
}

static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

#endif

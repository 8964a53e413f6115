// SPDX-License-Identifier: Apache-2.0
//
// What the fuzz targets share. LLVMFuzzerTestOneInput reads bytes as a list of operations; it must not fail
// a check, access memory outside its blocks, or leak. Built by clang with -fsanitize=fuzzer, a target is run
// by libFuzzer; built by any compiler with replay.c, it runs the files that are named. Targets write
// files to the working folder, which has a file `corpus` of tokens below 8.

#ifndef TARGET_H
#define TARGET_H

#define _GNU_SOURCE 1

#include "failing_memory.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// A file is mapped to a block of exactly its size, so that the sanitizers see each access outside it.
static void *block_mmap(size_t bytes, int descriptor) {
    void *block = malloc(bytes);
    if (!block || read(descriptor, block, bytes) != (ssize_t)bytes)
        return MAP_FAILED;
    return block;
}

#define mmap(address, bytes, protection, flags, descriptor, offset) block_mmap(bytes, descriptor)
#define munmap(address, bytes) free(address)
#define fsync(descriptor) 0
#include "corpus.c"
#include "persist.c"
#undef fsync

#include "check.h"
#include "model.h"
#include "save_pool.h"
#include "validate.h"

#define PLENTY ((size_t)1 << 30)

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const uint8_t *data;
    size_t left;
} input;

// The next byte, 0 at the end.
static uint32_t next_byte(input *in) {
    if (!in->left)
        return 0;
    in->left--;
    return *in->data++;
}

static uint32_t next_two(input *in) {
    uint32_t low = next_byte(in);
    return low | next_byte(in) << 8;
}

static void check_pool(pool *p) {
    const char *reason = NULL;
    if (!pool_validate(p, &reason)) {
        fprintf(stderr, "%s\n", reason);
        abort();
    }
}

// A damaged corpus may name a token twice; other texts have tokens below 8.
static bool damaged_corpus;

// A number that depends on all that was drafted and saved. It must be the same on every platform.
static uint64_t hash = 1;
static bool is_hashed = true;

static void add_to_hash(const void *data, size_t bytes) {
    hash = is_hashed ? hash_bytes(hash, data, bytes) : hash;
}

static size_t read_file(const char *name, void *contents, size_t most) {
    int file = open(name, O_RDONLY);
    CHECK(file >= 0);
    ssize_t bytes = read(file, contents, most);
    CHECK(bytes > 0 && close(file) == 0);
    return (size_t)bytes;
}

static uint64_t hash_of_file(const char *name) {
    static unsigned char contents[1 << 21];
    return hash_bytes(1, contents, read_file(name, contents, sizeof contents));
}

static void add_file_to_hash(const char *name) {
    uint64_t of_file = hash_of_file(name);
    add_to_hash(&of_file, sizeof of_file);
}

static void print_hash(void) { printf("%016llx\n", (unsigned long long)hash); }

// Returns the tokens of all rows as a table that ends where its last row does. The caller frees its tokens
// and starts.
static pool_tokens as_table(const int32_t *tokens, size_t rows, const int32_t *counts) {
    size_t width = 0;
    for (size_t i = 0; i < rows; i++)
        width = (size_t)counts[i] > width ? (size_t)counts[i] : width;
    int32_t *table = malloc(rows * width * sizeof(int32_t)), *starts = malloc(rows * sizeof(int32_t));
    for (size_t i = 0; i < rows; i++) {
        starts[i] = (int32_t)width - counts[i];
        memcpy(table + i * width + starts[i], tokens, (size_t)counts[i] * sizeof(int32_t));
        tokens += counts[i];
    }
    return (pool_tokens){table, width, starts, (ptrdiff_t)width};
}

// Makes a step with outputs of exactly the necessary size, and checks the drafts. If the number of tokens is odd
// and fits the counts, they are passed as a table; two or three more than a multiple of four set index_later.
// Returns the first row's draft in *first, which has room.
static pool_status checked_step(pool *p, const int32_t *slots, size_t rows, const int32_t *tokens,
                                size_t token_count, const int32_t *counts, const int32_t *k, bool uniform_k,
                                bool scored, size_t width, int32_t *first, uint32_t *first_size) {
    int32_t *out = malloc(rows * width * sizeof(int32_t)), *lengths = malloc(rows * sizeof(int32_t));
    float *scores = scored ? malloc(rows * width * sizeof(float)) : NULL;
    int32_t *sources = scored ? malloc(rows * width * sizeof(int32_t)) : NULL;
    int32_t *matches = scored ? malloc(rows * width * sizeof(int32_t)) : NULL;
    pool_drafts drafts = {out, scores, lengths, width, sources, matches, token_count % 4 > 1};
    bool is_table = token_count % 2;
    size_t sum = 0;
    for (size_t i = 0; i < rows; i++) {
        is_table &= counts[i] >= 0;
        sum += (size_t)counts[i];
    }
    is_table &= sum == token_count;
    pool_tokens given = {tokens, token_count, NULL, 0};
    if (is_table)
        given = as_table(tokens, rows, counts);
    pool_error error;
    pool_status status = pool_step(p, slots, rows, &given, counts, k, uniform_k, &drafts, &error);
    if (is_table) {
        free((void *)given.tokens);
        free((void *)given.starts);
    }
    for (size_t row = 0; status == POOL_OK && row < rows; row++) {
        CHECK(lengths[row] >= 0 && lengths[row] <= k[uniform_k ? 0 : row]);
        size_t drafted = (size_t)lengths[row];
        add_to_hash(out + row * width, drafted * sizeof(int32_t));
        if (scored)
            add_to_hash(scores + row * width, drafted * sizeof(float));
        for (size_t i = row * width, end = i + drafted; i < end; i++) {
            CHECK(out[i] >= 0 && (!damaged_corpus || out[i] < 8 || (uint32_t)out[i] <= p->corpus.largest));
            CHECK(!scored ||
                  (scores[i] >= p->options.min_prob && scores[i] <= (i == row * width ? 1 : scores[i - 1])));
            CHECK(!scored || (sources[i] >= 0 && sources[i] < RULE_SOURCES && matches[i] >= 0));
            CHECK(!p->options.vocab_size || (uint32_t)out[i] < p->options.vocab_size);
        }
    }
    *first_size = 0;
    if (status == POOL_OK && rows) {
        *first_size = (uint32_t)lengths[0];
        if (lengths[0])
            memcpy(first, out, (size_t)lengths[0] * sizeof(int32_t));
    }
    free(out);
    free(lengths);
    free(scores);
    free(sources);
    free(matches);
    return status;
}

#endif

// SPDX-License-Identifier: Apache-2.0
//
// Drives the C core without Python, with an allocator that counts and fails on demand. test_c.py compiles
// this with the sanitizers and runs it. A check that fails ends the program with a line on stderr.

#include <stddef.h>

void *test_realloc(void *block, size_t bytes);
void test_free(void *block);
#define SAM_REALLOC test_realloc
#define SAM_FREE test_free

#include "pool.c"
#include "sam.c"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static int64_t live_blocks, allocations, fail_at = -1;
static bool fail_on; // keep failing from fail_at on

void *test_realloc(void *block, size_t bytes) {
    int64_t number = allocations++;
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

static uint32_t random_state;

static int32_t draw(uint32_t below) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % below);
}

static void check_sound(pool *p) {
    const char *reason = NULL;
    if (!pool_validate(p, &reason)) {
        fprintf(stderr, "allocation %lld of %lld failed: %s\n", (long long)fail_at, (long long)allocations,
                reason);
        exit(1);
    }
}

enum { PROMPTS = 3, MOST = 6 };

// A fixed history of opens, steps, closes and drops. Every call must leave the pool sound, whatever fails.
static void history(size_t memory_bytes, sam_rule rule) {
    static const int32_t prompts[PROMPTS][4] = {{1, 2, 1, 2}, {3, 3, 3, 3}, {0, 1, 2, 3}};
    pool p;
    pool_init(&p, memory_bytes, rule, POOL_REQUEST | POOL_GROUP);
    int32_t open[MOST];
    size_t count = 0;
    random_state = 7;
    for (int turn = 0; turn < 60; turn++) {
        int act = draw(8);
        if (act < 2 && count < MOST) {
            pool_key kind = (pool_key)draw(3);
            uint32_t slot;
            if (pool_open(&p, prompts[draw(PROMPTS)], 4, kind, "name", 4, &slot) == POOL_OK)
                open[count++] = (int32_t)slot;
        } else if (act == 2 && count) {
            size_t at = (size_t)draw((uint32_t)count);
            pool_error error;
            CHECK(pool_close(&p, open[at], draw(2), &error) == POOL_OK);
            open[at] = open[--count];
        } else if (act == 3) {
            bool found;
            pool_error error;
            pool_drop(&p, POOL_BY_PROMPT, prompts[draw(PROMPTS)], 4 * sizeof(int32_t), &found, &error);
        } else {
            int32_t tokens[MOST * 3], counts[MOST], k = 3, out[MOST * 3], lengths[MOST];
            for (size_t i = 0; i < count; i++)
                counts[i] = 3;
            for (size_t i = 0; i < 3 * count; i++)
                tokens[i] = draw(4);
            pool_error error;
            pool_status status =
                pool_step(&p, open, count, tokens, 3 * count, counts, &k, true, out, 3, lengths, &error);
            CHECK(status == POOL_OK || status == POOL_NO_MEMORY);
        }
        check_sound(&p);
    }
    pool_free(&p);
    CHECK(p.memory.used == 0);
    CHECK(live_blocks == 0);
}

static void test_every_allocation_fails_in_turn(void) {
    for (int rule = SAM_OLDEST; rule <= SAM_NEWEST; rule++)
        for (int on = 0; on < 2; on++) {
            fail_on = on;
            for (fail_at = 0;; fail_at++) {
                allocations = 0;
                history((size_t)1 << 30, (sam_rule)rule);
                if (allocations <= fail_at)
                    break;
            }
            CHECK(fail_at > 100); // the history does allocate
        }
    fail_at = -1;
}

static void test_every_memory_limit(void) {
    for (size_t limit = 0; limit < 40000; limit += 97)
        history(limit, SAM_NEWEST);
}

static void test_no_allocation_per_token(void) {
    pool p;
    pool_init(&p, (size_t)1 << 30, SAM_NEWEST, POOL_REQUEST | POOL_GROUP);
    uint32_t slot;
    CHECK(pool_open(&p, NULL, 0, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    allocations = 0;
    int32_t number = (int32_t)slot, one = 1, k = 3, out[3], length;
    for (int i = 0; i < 20000; i++) {
        int32_t token = draw(100);
        pool_error error;
        CHECK(pool_step(&p, &number, 1, &token, 1, &one, &k, true, out, 3, &length, &error) == POOL_OK);
    }
    CHECK(allocations < 120); // five arrays and two tables that grow by half or more
    check_sound(&p);
    pool_free(&p);
    CHECK(live_blocks == 0);
}

static void test_equal_hash_is_not_an_equal_prompt(void) {
    static const int32_t one[] = {34390, 125200, 0}, other[] = {49628, 53662, 899010195};
    CHECK(hash_key(POOL_BY_PROMPT, one, sizeof one) == hash_key(POOL_BY_PROMPT, other, sizeof other));
    pool p;
    pool_init(&p, (size_t)1 << 30, SAM_NEWEST, POOL_REQUEST | POOL_GROUP);
    uint32_t slot;
    CHECK(pool_open(&p, one, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(pool_open(&p, other, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(p.groups == 2);
    CHECK(pool_open(&p, one, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(p.groups == 2);
    check_sound(&p);
    pool_free(&p);
    CHECK(live_blocks == 0);
}

// A failed extension must leave the index as it was, also in the middle of a clone or of a growing table.
static void test_extend_is_all_or_nothing(void) {
    for (int64_t at = 0;; at++) {
        sam_memory memory = {.limit = SIZE_MAX};
        sam_index index;
        fail_at = -1;
        CHECK(sam_index_init(&index, &memory, SAM_NEWEST));
        random_state = 3;
        allocations = 0;
        fail_at = at;
        fail_on = false;
        uint32_t last = SAM_ROOT;
        bool failed = false;
        for (int i = 0; i < 400; i++) {
            int32_t token = draw(3);
            uint32_t next, states = index.state_count, edges = index.edge_count;
            const char *reason = NULL;
            if (!sam_index_extend(&index, last, token, &next)) {
                failed = true;
                CHECK(index.state_count == states && index.edge_count == edges);
                CHECK(sam_index_validate(&index, &reason));
                CHECK(
                    sam_index_extend(&index, last, token, &next)); // it was one failure: now there is memory
            }
            sam_index_mark(&index, last, (uint32_t)i);
            last = next;
            CHECK(i % 50 || sam_index_validate(&index, &reason));
        }
        CHECK(memory.used == sam_index_bytes(&index));
        sam_index_free(&index);
        CHECK(memory.used == 0 && live_blocks == 0);
        if (!failed)
            break;
    }
    fail_at = -1;
}

// Everything the validation promises to notice.
static void test_validation_notices_damage(void) {
    sam_memory memory = {.limit = SIZE_MAX};
    sam_index index;
    CHECK(sam_index_init(&index, &memory, SAM_NEWEST));
    uint32_t last = SAM_ROOT;
    random_state = 9;
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t next;
        CHECK(sam_index_extend(&index, last, draw(3), &next));
        sam_index_mark(&index, last, i);
        last = next;
    }
    const char *reason = NULL;
    CHECK(sam_index_validate(&index, &reason));
#define NOTICES(field, value)                                                                                \
    do {                                                                                                     \
        uint32_t good = (uint32_t)(field);                                                                   \
        field = value;                                                                                       \
        CHECK(!sam_index_validate(&index, &reason));                                                         \
        field = good;                                                                                        \
        CHECK(sam_index_validate(&index, &reason));                                                          \
    } while (0)
    NOTICES(index.states[last].link, last);
    NOTICES(index.states[last].link, SAM_ROOT);
    NOTICES(index.states[last].length, 1);
    NOTICES(index.states[SAM_ROOT].target, 0);
    NOTICES(index.states[SAM_ROOT].target, last + 1000);
    NOTICES(index.edge_count, index.edge_count - 1);
    NOTICES(index.edge_count, index.edge_count + 1);
    NOTICES(index.state_count, index.state_capacity + 1);
    NOTICES(index.paths[last].above, SAM_HANGS);
    NOTICES(index.paths[last].left, 1);
    NOTICES(index.states[last].seen, 1000); // newer than its link
    sam_index_mark(&index, last, 60);
    NOTICES(index.states[last].seen,
            0); // the whole path of the text, and others that are marked hang from it
    sam_index_free(&index);
    CHECK(live_blocks == 0);
}

int main(void) {
    test_every_allocation_fails_in_turn();
    test_every_memory_limit();
    test_no_allocation_per_token();
    test_equal_hash_is_not_an_equal_prompt();
    test_extend_is_all_or_nothing();
    test_validation_notices_damage();
    return 0;
}

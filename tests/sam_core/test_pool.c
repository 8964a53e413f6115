// SPDX-License-Identifier: Apache-2.0
//
// Loads files while allocations fail or memory ends, checks allocations and hashes, and saves while texts are evicted.
// The seeds of fuzz_pool test all other calls. Run it in an empty folder. With an argument it only saves.

#include "failing_memory.h"

#include "group.h"
#include "persist.h"
#include "validate.h"

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "save_pool.h"

static void check_sound(pool *p) {
    const char *reason = NULL;
    if (!pool_validate(p, &reason)) {
        fprintf(stderr, "allocation %lld of %lld failed: %s\n", fail_at, allocations, reason);
        exit(1);
    }
}

enum { ALL = 1 << RULE_REQUEST | 1 << RULE_GROUP | 1 << RULE_HISTORY | 1 << RULE_COMMON, PLENTY = 1 << 30 };

// Groups of several texts, closed and open ones.
static void fill(pool *p) {
    random_state = 5;
    for (int32_t i = 0; i < 12; i++) {
        int32_t prompt[3] = {i % 8, 1, 2}, answer[20];
        char name = (char)('a' + i % 8);
        uint32_t slot;
        pool_error error;
        pool_key kind = i % 2 ? POOL_BY_PROMPT : POOL_NAMED;
        CHECK(pool_open(p, prompt, 3, kind, &name, 1, &slot) == POOL_OK);
        for (int j = 0; j < 20; j++)
            answer[j] = (int32_t)draw(4);
        CHECK(pool_append(p, slot, answer, 20, &error) == POOL_OK);
        CHECK(i == 11 || pool_close(p, slot, true, &error) == POOL_OK);
    }
}

// Loads a file while each allocation fails in turn, and with every memory limit.
static void test_load_drops_what_does_not_fit(unsigned sources) {
    static const char path[] = "saved.pool";
    pool p, copy;
    CHECK(pool_init(&p, PLENTY, RULE_SUFFIX, sources, NULL, 0));
    fill(&p);
    keep_failing = true;
    fail_at = 0;
    allocations = 0;
    CHECK(save_pool(&p, path) == PERSIST_SYSTEM);
    fail_at = -1;
    CHECK(save_pool(&p, path) == PERSIST_OK);
    pool_free(&p);
    persist_file file;
    const char *reason = "";
    CHECK(persist_open(&file, path, &reason) == PERSIST_OK);
    CHECK(file.header.groups == 8 && file.header.texts == 11);
    uint64_t complete = 0;
    for (int on = 0; on < 2; on++) {
        keep_failing = on;
        for (fail_at = 1;; fail_at++) { // allocation 0 is that of the model
            allocations = 0;
            CHECK(pool_init(&copy, PLENTY, RULE_SUFFIX, sources, NULL, 0));
            CHECK(persist_load(&file, &copy, &reason) == PERSIST_OK);
            bool failed = allocations > fail_at;
            CHECK(copy.stats.groups + copy.stats.evicted_groups == 8 && (failed || copy.stats.groups == 8));
            fail_at = failed ? fail_at : -1;
            check_sound(&copy);
            complete = copy.memory.used;
            pool_free(&copy);
            CHECK(copy.memory.used == 0 && live_blocks == 0);
            if (!failed)
                break;
        }
    }
    uint64_t groups = 0;
    for (size_t limit = pool_min_bytes(); limit <= complete; limit += 16) {
        CHECK(pool_init(&copy, limit, RULE_SUFFIX, sources, NULL, 0));
        CHECK(persist_load(&file, &copy, &reason) == PERSIST_OK);
        CHECK(copy.stats.groups + copy.stats.evicted_groups == 8);
        check_sound(&copy);
        groups = copy.stats.groups;
        pool_free(&copy);
    }
    CHECK(groups >= 7);
    persist_close(&file);
    CHECK(live_blocks == 0);
}

static void test_no_allocation_per_token(void) {
    pool p;
    CHECK(pool_init(&p, PLENTY, RULE_NEWEST, ALL, NULL, 0));
    uint32_t slot;
    CHECK(pool_open(&p, NULL, 0, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    int32_t number = (int32_t)slot, one = 1, k = 3, out[3], length;
    pool_drafts drafts = {out, NULL, &length, 3, NULL, NULL, .index_later = false};
    for (int i = 0; i < 40000; i++) {
        if (i == 20000)
            allocations = 0;
        int32_t token = (int32_t)draw(100);
        pool_error error;
        pool_tokens tokens = {&token, 1, NULL, 0};
        CHECK(pool_step(&p, &number, 1, &tokens, &one, &k, true, &drafts, &error) == POOL_OK);
    }
    CHECK(allocations < 80); // eleven arrays that grow by a quarter or more, to twice their size
    check_sound(&p);
    pool_free(&p);
    CHECK(live_blocks == 0);
}

static void test_equal_hash_is_not_an_equal_prompt(void) {
    static const int32_t one[] = {34390, 125200, 0}, other[] = {49628, 53662, 899010195};
    CHECK(group_hash(POOL_BY_PROMPT, one, sizeof one) == group_hash(POOL_BY_PROMPT, other, sizeof other));
    pool p;
    CHECK(pool_init(&p, PLENTY, RULE_NEWEST, ALL, NULL, 0));
    uint32_t slot;
    CHECK(pool_open(&p, one, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(pool_open(&p, other, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(p.stats.groups == 2);
    CHECK(pool_open(&p, one, 3, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
    CHECK(p.stats.groups == 2);
    check_sound(&p);
    pool_free(&p);
    CHECK(live_blocks == 0);
}

// ---- texts are added and evicted while they are written by another thread, which takes no lock

static persist_snapshot snapshot;
static atomic_bool written;

static void *write_snapshot(void *unused) {
    CHECK(!unused && persist_write(&snapshot, "saved.pool") == PERSIST_OK);
    written = true;
    return NULL;
}

static void test_saving_while_texts_are_evicted(void) {
    enum { ANSWER = 400, SAVES = 10 };
    static pool only, *p = &only;
    pool_error error;
    const char *reason;
    uint64_t freed = 0;
    CHECK(pool_init(p, pool_min_bytes() + 400000, RULE_NEWEST, 1 << RULE_GROUP | 1 << RULE_HISTORY, NULL, 0));
    for (int turn = 0; turn < SAVES; turn++) {
        pthread_t thread;
        persist_file file;
        CHECK(persist_collect(p, &snapshot));
        written = false;
        CHECK(pthread_create(&thread, NULL, write_snapshot, NULL) == 0);
        for (int i = 0; i < 300 || !written; i++) {
            uint32_t slot;
            int32_t prompt[2] = {(int32_t)draw(50), 1}, answer[ANSWER];
            for (int j = 0; j < ANSWER; j++)
                answer[j] = (int32_t)draw(5);
            CHECK(pool_open(p, prompt, 2, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
            CHECK(pool_append(p, slot, answer, ANSWER, &error) == POOL_OK);
            CHECK(pool_close(p, slot, true, &error) == POOL_OK);
        }
        pthread_join(thread, NULL);
        for (size_t i = 0; i < snapshot.pinned; i++)
            freed += snapshot.texts[i].text->freed;
        while (persist_release(&snapshot, 3))
            ;
        CHECK(persist_open(&file, "saved.pool", &reason) == PERSIST_OK);
        CHECK(persist_check(&file, &reason) == PERSIST_OK);
        persist_close(&file);
    }
    CHECK(pool_validate(p, &reason) && freed > 0);
    pool_free(p);
    CHECK(p->memory.used == 0);
}

int main(int count, char **arguments) {
    if (count == 1) {
        test_load_drops_what_does_not_fit(ALL);
        test_load_drops_what_does_not_fit(1 << RULE_GROUP | 1 << RULE_HISTORY);
        test_no_allocation_per_token();
        test_equal_hash_is_not_an_equal_prompt();
    }
    test_saving_while_texts_are_evicted();
    (void)arguments;
    return 0;
}

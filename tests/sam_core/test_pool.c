// SPDX-License-Identifier: Apache-2.0
//
// Drives the pool and its files while allocations fail and memory ends. Run it in an empty folder.

#include "failing_memory.h"

#include "group.h"
#include "model.h"
#include "persist.h"
#include "validate.h"

#include "check.h"
#include "save_pool.h"

// What happened in all pools so far: a test that never runs out of memory would prove nothing.
static uint64_t evicted_groups, evicted_history, exhausted, partial_automata, lost_automata;

static void check_sound(pool *p) {
    const char *reason = NULL;
    if (!pool_validate(p, &reason)) {
        fprintf(stderr, "allocation %lld of %lld failed: %s\n", fail_at, allocations, reason);
        exit(1);
    }
}

enum {
    ALL = 1 << RULE_REQUEST | 1 << RULE_GROUP | 1 << RULE_HISTORY | 1 << RULE_COMMON,
    PLENTY = 1 << 30,
    EXTREME = PLENTY + 2
};
enum { PROMPTS = 3, MOST = 6, DRAFT = 4 };

// The largest weights that a model can come to. What it learns from there must be a model that may be loaded.
static void set_extreme_weights(rule_model *m) {
    size_t bytes;
    model_learned *learned = rule_model_learned(m, &bytes);
    for (uint32_t set = 0; set < MODEL_SETS; set++)
        for (uint32_t i = 0; i < MODEL_INPUTS; i++)
            learned->weights[set][i] = draw(2) ? MODEL_MAX_WEIGHT : -MODEL_MAX_WEIGHT;
}

// A fixed history of opens, steps, closes and drops. Every call must leave the pool sound,
// whatever fails.
static void history(size_t memory_bytes, rule_name rule, unsigned sources) {
    static const int32_t prompts[PROMPTS][4] = {{1, 2, 1, 2}, {3, 3, 3, 3}, {0, 1, 2, 3}};
    long long blocks = live_blocks;
    pool p;
    if (!pool_init(&p, memory_bytes, rule, sources, NULL, 0))
        return;
    if (memory_bytes == EXTREME)
        set_extreme_weights(p.model);
    int32_t open[MOST];
    size_t count = 0;
    random_state = 7;
    if (memory_bytes % 2) // automata are fed a few tokens at a time
        p.step.slice = p.step.off_slice = 7;
    if (rule == RULE_COUNT || rule == RULE_BLEND) // rows are fed and drafted in blocks
        p.threads.many_rows = 2;
    for (int turn = 0; turn < 60; turn++) {
        int act = (int)draw(10);
        pool_error error;
        if (act < 2 && count < MOST) {
            pool_key kind = (pool_key)draw(3);
            uint32_t slot;
            if (pool_open(&p, prompts[draw(PROMPTS)], 4, kind, "name", 4, &slot) == POOL_OK)
                open[count++] = (int32_t)slot;
        } else if ((act < 4 || turn % 20 == 19) && count) {
            do { // sometimes all, so that lives end
                size_t at = (size_t)draw((uint32_t)count);
                CHECK(pool_close(&p, open[at], draw(3), &error) == POOL_OK);
                open[at] = open[--count];
            } while (turn % 20 == 19 && count);
        } else if (act == 4) {
            bool found;
            pool_drop(&p, POOL_BY_PROMPT, prompts[draw(PROMPTS)], 4 * sizeof(int32_t), &found, &error);
        } else if (act < 7 && count) {
            int32_t tokens[3] = {(int32_t)draw(4), (int32_t)draw(4), (int32_t)draw(4)};
            CHECK(pool_append(&p, open[draw((uint32_t)count)], tokens, 3, &error) == POOL_OK);
        } else {
            int32_t tokens[MOST * 3], counts[MOST], k = DRAFT, out[MOST * DRAFT], parents[MOST * DRAFT];
            int32_t lengths[MOST];
            float scores[MOST * DRAFT];
            for (size_t i = 0; i < count; i++)
                counts[i] = 3;
            for (size_t i = 0; i < 3 * count; i++)
                tokens[i] = (int32_t)draw(4);
            pool_drafts drafts = {out,  draw(2) ? parents : NULL, scores, lengths, DRAFT, NULL,
                                  NULL, .index_later = draw(2)};
            pool_status status = pool_step(&p, open, count, &(pool_tokens){tokens, 3 * count, NULL, 0},
                                           counts, &k, true, &drafts, &error);
            CHECK(status == POOL_OK || status == POOL_NO_MEMORY);
            for (size_t i = 0; status == POOL_OK && i < count; i++)
                CHECK(lengths[i] >= 0 && lengths[i] <= DRAFT);
        }
        check_sound(&p);
        for (size_t i = 0; i < count; i++) {
            const pool_group *g = p.slots.items[open[i]].group;
            partial_automata += g && g->index.memory && g->next_past;
            lost_automata += g && g->lost;
        }
    }
    evicted_groups += p.stats.evicted_groups;
    evicted_history += p.stats.evicted_history;
    exhausted += p.stats.exhausted;
    CHECK(rule_model_valid(p.model));
    pool_free(&p);
    CHECK(p.memory.used == 0);
    CHECK(live_blocks == blocks);
}

static void test_every_allocation_fails_in_turn(void) {
    static const unsigned sources[] = {ALL, 1 << RULE_GROUP, 1 << RULE_REQUEST | 1 << RULE_GROUP,
                                       1 << RULE_GROUP | 1 << RULE_HISTORY, ALL};
    for (int rule = RULE_OLDEST; rule <= RULE_BLEND; rule++)
        for (int on = 0; on < 2; on++) {
            fail_on = on;
            for (fail_at = 0;; fail_at++) {
                allocations = 0;
                history(PLENTY + (size_t)rule % 2, (rule_name)rule, sources[rule]);
                if (allocations <= fail_at)
                    break;
            }
            CHECK(fail_at > 50); // the history does allocate
        }
    fail_at = -1;
}

static void test_every_memory_limit(void) {
    for (size_t more = 0; more < 50000; more += 257)
        history(pool_min_bytes() + more, RULE_NEWEST, ALL);
    for (size_t more = 0; more < 50000; more += 257) // often a group fits without its history alone
        history(pool_min_bytes() + more, RULE_NEWEST, 1 << RULE_GROUP | 1 << RULE_HISTORY);
    for (size_t more = 0; more < 50000; more += 1511) {
        history(pool_min_bytes() + more, RULE_COUNT, ALL);
        history(pool_min_bytes() + more, RULE_OLDEST, 1 << RULE_GROUP);
    }
    CHECK(evicted_groups && evicted_history && exhausted && partial_automata && lost_automata);
    pool p;
    CHECK(!pool_init(&p, pool_min_bytes() - 1, RULE_NEWEST, ALL, NULL, 0));
    CHECK(live_blocks == 0);
}

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

// Loads a file with every allocation failing in turn and with every memory limit.
static void test_load_drops_what_does_not_fit(unsigned sources) {
    static const char path[] = "saved.pool";
    pool p, copy;
    CHECK(pool_init(&p, PLENTY, RULE_COUNT, sources, NULL, 0));
    fill(&p);
    fail_on = true;
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
        fail_on = on;
        for (fail_at = 1;; fail_at++) { // 0 is the model
            allocations = 0;
            CHECK(pool_init(&copy, PLENTY, RULE_COUNT, sources, NULL, 0));
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
        CHECK(pool_init(&copy, limit, RULE_COUNT, sources, NULL, 0));
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
    pool_drafts drafts = {out, NULL, NULL, &length, 3, NULL, NULL, .index_later = false};
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

int main(void) {
    test_every_allocation_fails_in_turn();
    test_every_memory_limit();
    history(EXTREME, RULE_BLEND, ALL);
    test_load_drops_what_does_not_fit(ALL);
    test_load_drops_what_does_not_fit(1 << RULE_GROUP | 1 << RULE_HISTORY);
    test_no_allocation_per_token();
    test_equal_hash_is_not_an_equal_prompt();
    return 0;
}

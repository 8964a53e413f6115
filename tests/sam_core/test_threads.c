// SPDX-License-Identifier: Apache-2.0
//
// Large steps by one thread and by several (threads.h) give what the loops of pool_step give, row by row; with
// little memory all numbers of threads agree. And a snapshot is written while the pool goes on.

#include "persist.h"
#include "validate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"

enum { SLOTS = 420, PROMPTS = 150, MAX_COUNT = 4, WIDTH = 4, POOLS = 4, LOOPS = 0, PLENTY = 1 << 28 };
enum { LONG = 400, MAX_PROMPT = 6000 };

typedef struct {
    int32_t tokens[SLOTS * WIDTH], parents[SLOTS * WIDTH], lengths[SLOTS], sources[SLOTS * WIDTH];
    int32_t match_lengths[SLOTS * WIDTH];
    float scores[SLOTS * WIDTH];
} result;

static pool pools[POOLS];                                // LOOPS: without blocks
static const uint32_t num_threads[POOLS] = {1, 1, 2, 6}; // with 6 each lesson has a helper
static result results[POOLS];
static int32_t slots[SLOTS];
static int turns = 60;
static uint64_t fed, drafted;
static size_t peak; // bytes

// Pools from `first` on agree.
static void check_equal(int first) {
    for (int i = first + 1; i < POOLS; i++) {
        const pool *a = &pools[first], *b = &pools[i];
        CHECK(memcmp(&results[first], &results[i], sizeof(result)) == 0);
        CHECK(a->memory.used == b->memory.used);
        CHECK(a->memory.work == b->memory.work || a->memory.limit < PLENTY); // repeated if refused in a block
        CHECK(memcmp(a->stats.drafts, b->stats.drafts, sizeof a->stats.drafts) == 0);
        CHECK(memcmp(a->stats.drafted, b->stats.drafted, sizeof a->stats.drafted) == 0);
        CHECK(memcmp(a->stats.accepted, b->stats.accepted, sizeof a->stats.accepted) == 0);
        CHECK(a->stats.evicted_groups == b->stats.evicted_groups && a->stats.exhausted == b->stats.exhausted);
    }
}

static void step(int first, bool tree) {
    int32_t rows[SLOTS], counts[SLOTS], k[SLOTS], tokens[SLOTS * MAX_COUNT];
    uint32_t count = 0, size = 0, offset = draw(SLOTS), stride = 1 + 2 * draw(100),
             max_k = draw(8) ? WIDTH : 0;
    while (stride % 3 == 0 || stride % 5 == 0 || stride % 7 == 0) // visits every slot once
        stride += 2;
    bool few = draw(4) == 0, all = draw(2) == 0, none = draw(4) == 0, idle = draw(4) == 0;
    bool index_later = draw(2), catch_up = draw(2);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (draw(few ? 3 : 30) == 0)
            continue;
        rows[count] = slots[(offset + i * stride) % SLOTS];
        counts[count] = none ? 0 : (int32_t)draw(MAX_COUNT + 1);
        k[count] = idle ? draw(10) == 0 : all || draw(20) ? (int32_t)max_k : 0;
        for (int32_t j = 0; j < counts[count]; j++, size++)
            tokens[size] = (int32_t)(draw(3) ? (size + i) % 7 : draw(40));
        count++;
    }
    for (int i = first; i < POOLS; i++) {
        pool_error error;
        result *r = &results[i];
        pool_drafts out = {r->tokens,  tree ? r->parents : NULL, r->scores,  r->lengths, WIDTH,
                           r->sources, r->match_lengths,         index_later};
        CHECK(pool_step(&pools[i], rows, count, &(pool_tokens){tokens, size, NULL, 0}, counts, k, false, &out,
                        &error) == POOL_OK);
        if (catch_up)
            pool_catch_up(&pools[i]);
        for (uint32_t j = 0; i == POOLS - 1 && j < count; j++) {
            fed += pools[i].step.rows[j].fed;
            drafted += pools[i].step.rows[j].drafted;
        }
    }
    check_equal(first);
}

static void open_slot(int first, uint32_t at) {
    size_t size = draw(10) ? 2 : draw(10) ? LONG : MAX_PROMPT;
    int32_t prompt[MAX_PROMPT] = {(int32_t)(draw(size == MAX_PROMPT ? 3 : PROMPTS) + 100), 1};
    for (size_t i = 2; i < size; i++)
        prompt[i] = prompt[i - 2] % 50 + (int32_t)(i * i % 11);
    pool_key kind = draw(5) ? POOL_BY_PROMPT : draw(2) ? POOL_PRIVATE : POOL_NAMED;
    for (int i = first; i < POOLS; i++) {
        uint32_t slot;
        CHECK(pool_open(&pools[i], prompt, size, kind, "name", 4, &slot) == POOL_OK);
        CHECK(i == first || slots[at] == (int32_t)slot);
        slots[at] = (int32_t)slot;
    }
}

static void run_pools(rule_name rule, unsigned sources, size_t memory, int first) {
    static const int64_t slices[] = {20000, 50, 300, 1000}; // work may end before the rows
    const char *reason = NULL;
    for (int i = first; i < POOLS; i++) {
        CHECK(pool_init(&pools[i], pool_min_bytes() + memory, rule, sources, NULL, 0));
        pools[i].threads.many_rows = i == LOOPS ? UINT32_MAX : 2;
        pools[i].threads.count = num_threads[i];
    }
    memset(results, 0, sizeof results);
    for (uint32_t i = 0; i < SLOTS; i++)
        open_slot(first, i);
    for (int turn = 0; turn < turns; turn++) {
        for (int i = first; i < POOLS; i++)
            pools[i].step.slice = slices[turn / 4 % 4];
        step(first, turn % 3 == 0);
        if (pools[POOLS - 1].memory.used > peak)
            peak = pools[POOLS - 1].memory.used;
        for (uint32_t change = draw(3) ? 0 : draw(40); change; change--) {
            uint32_t at = draw(SLOTS);
            bool keep = draw(3) > 0;
            pool_error error;
            for (int i = first; i < POOLS; i++)
                CHECK(pool_close(&pools[i], slots[at], keep, &error) == POOL_OK);
            open_slot(first, at);
        }
    }
    for (int i = first; i < POOLS; i++) {
        if (!pool_validate(&pools[i], &reason))
            printf("%s\n", reason);
        CHECK(!reason);
        pool_free(&pools[i]);
        CHECK(pools[i].memory.used == 0);
    }
}

static persist_snapshot snapshot;
static atomic_bool written;

static void *write_snapshot(void *unused) {
    CHECK(!unused && persist_write(&snapshot, "saved.pool") == PERSIST_OK);
    written = true;
    return NULL;
}

// Texts are added and evicted while they are written by another thread, which takes no lock.
static void save_while_the_pool_goes_on(void) {
    enum { ANSWER = 400, SAVES = 10 };
    pool *p = &pools[0];
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

// With an argument only a part of the work is done, for slow machines.
int main(int count, char **arguments) {
    enum { REQUEST = 1 << RULE_REQUEST, GROUP = 1 << RULE_GROUP, HISTORY = 1 << RULE_HISTORY };
    uint64_t short_of_memory = 0;
    (void)arguments;
    random_state = 3;
    if (count > 1)
        turns = 6;
    for (int rule = RULE_NEWEST; rule <= RULE_BLEND; rule += RULE_BLEND - RULE_NEWEST) {
        uint32_t state = random_state;
        peak = 0;
        run_pools((rule_name)rule, REQUEST | GROUP | HISTORY, PLENTY, LOOPS);
        random_state = state; // a block's part of the memory may not suffice
        run_pools((rule_name)rule, REQUEST | GROUP | HISTORY, (peak - pool_min_bytes()) / 100 * 108, LOOPS);
        CHECK(!pools[LOOPS].stats.exhausted && !pools[LOOPS].stats.evicted_groups);
        run_pools((rule_name)rule, rule % 2 ? REQUEST : GROUP, PLENTY, LOOPS);
    }
    CHECK(fed > 16u * (uint64_t)turns && drafted > fed);
    fed = drafted = 0;
    for (size_t memory = 2 << 20; memory <= 8 << 20; memory += 3 << 20) {
        run_pools(RULE_BLEND, REQUEST | GROUP | HISTORY, memory, LOOPS + 1);
        short_of_memory += pools[1].stats.exhausted + pools[1].stats.evicted_groups;
    }
    CHECK(fed > 8u * (uint64_t)turns && short_of_memory > 0);
    save_while_the_pool_goes_on();
    return 0;
}

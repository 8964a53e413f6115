// SPDX-License-Identifier: Apache-2.0
//
// Threads that share a pool as module.c lets them: every call with the lock held, but for persist_write. The
// memory is so small that texts are evicted while they are written.

#include "persist.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

enum { WORKERS = 3, SAVES = 20, ANSWER = 400, RELEASED = 3 };

static pool p;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved_on = PTHREAD_COND_INITIALIZER;
static uint64_t next_turn, turn;
static bool done;
static uint64_t freed_while_pinned;

// A lock that is taken in the order in which it was asked for: a mutex would let the workers keep the writer waiting.
static void take_lock(void) {
    pthread_mutex_lock(&mutex);
    for (uint64_t mine = next_turn++; turn != mine;)
        pthread_cond_wait(&moved_on, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void give_lock(void) {
    pthread_mutex_lock(&mutex);
    turn++;
    pthread_cond_broadcast(&moved_on);
    pthread_mutex_unlock(&mutex);
}

static void *work(void *number) {
    uint32_t state = (uint32_t)(uintptr_t)number + 1;
    for (bool end = false; !end;) {
        int32_t prompt[2] = {(int32_t)(state % 50), 1}, answer[ANSWER], draft[4], length, count = 0, k = 4;
        for (int i = 0; i < ANSWER; i++) {
            state = state * 1664525 + 1013904223;
            answer[i] = (int32_t)(state >> 16) % 5;
        }
        uint32_t slot;
        pool_error error;
        pool_drafts out = {draft, NULL, NULL, &length, 4, NULL, NULL, .early = state % 2};
        take_lock();
        CHECK(pool_open(&p, prompt, 2, POOL_BY_PROMPT, NULL, 0, &slot) == POOL_OK);
        int32_t slots = (int32_t)slot;
        CHECK(pool_append(&p, slots, answer, ANSWER, &error) == POOL_OK);
        CHECK(pool_step(&p, &slots, 1, &(pool_tokens){NULL, 0, NULL, 0}, &count, &k, true, &out, &error) ==
              POOL_OK);
        CHECK(pool_close(&p, slots, true, &error) == POOL_OK);
        end = done;
        give_lock();
    }
    return NULL;
}

static void save(void) {
    persist_snapshot s;
    take_lock();
    CHECK(persist_collect(&p, &s));
    give_lock();
    CHECK(persist_write(&s, "threads.pool") == PERSIST_OK);
    for (bool more = true; more;) {
        take_lock();
        for (size_t i = 0; i < s.pinned; i++)
            freed_while_pinned += s.texts[i].text->freed;
        more = persist_release(&s, RELEASED);
        give_lock();
    }
    persist_file file;
    const char *reason = NULL;
    CHECK(persist_open(&file, "threads.pool", &reason) == PERSIST_OK);
    CHECK(persist_check(&file, &reason) == PERSIST_OK);
    persist_close(&file);
}

int main(void) {
    const char *reason = NULL;
    unsigned sources = 1u << RULE_REQUEST | 1u << RULE_GROUP | 1u << RULE_HISTORY;
    CHECK(pool_init(&p, pool_min_bytes() + 400000, RULE_NEWEST, sources, NULL, 0));
    pthread_t threads[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < SAVES; i++)
        save();
    take_lock();
    done = true;
    give_lock();
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(pool_validate(&p, &reason));
    printf("%llu texts freed while they were written\n", (unsigned long long)freed_while_pinned);
    CHECK(freed_while_pinned > 0);
    pool_free(&p);
    CHECK(p.memory.used == 0);
    return 0;
}

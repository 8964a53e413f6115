// SPDX-License-Identifier: Apache-2.0
//
// Texts are added and evicted while they are written by another thread, which takes no lock.

#include "persist.h"
#include "validate.h"

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

static persist_snapshot snapshot;
static atomic_bool written;

static void *write_snapshot(void *unused) {
    CHECK(!unused && persist_write(&snapshot, "saved.pool") == PERSIST_OK);
    written = true;
    return NULL;
}

int main(void) {
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
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// Prefetching for steps of many rows, which do not fit the caches. The memory of a row is prefetched some rows ahead,
// in stages: each stage reads what the one before it has prefetched. For a few rows it does not pay.

#ifndef PREFETCH_H
#define PREFETCH_H

#include "state.h"

enum {
    CACHE_LINE = 64, // bytes
    MANY_ROWS = 256, // for which prefetching pays
    ROWS_AHEAD = 4,  // between two stages of what takes little time
};

// Stages of what a row needs to store its tokens, to learn the lessons from `first` to before `end` from them, to be
// fed, and to draft.
enum {
    STORE_STAGES = 3,
    LEARN_STAGES = 3,
    FEED_STAGES = SAM_APPEND_STAGES + 1,
    DRAFT_STAGES = SAM_MATCH_STAGES + 1
};
void prefetch_store(const pool *p, const pool_row *row, unsigned stage);
void prefetch_learn(const pool *p, const pool_row *row, unsigned stage, int first, int end);
void prefetch_feed(const pool *p, pool_row *row, unsigned stage);
void prefetch_draft(const pool *p, pool_row *row, unsigned stage);

// Prefetches all cache lines of a block.
void prefetch_bytes(const void *block, size_t bytes);

// A walk over items, in stages. Each item comes once for every stage, and at last with `stage` equal to `stages`:
// then its turn has come. An item is `distance` items ahead of the one in the next stage.
typedef struct {
    size_t count, end, distance;
    unsigned stages;
    unsigned first;    // stage in which items begin
    size_t item;       // that came last
    unsigned stage;    // of it
    size_t ahead, lag; // the item that comes next is `lag` items after the one in the first stage
    unsigned next;     // stage of it
} staged_walk;

static inline staged_walk walk_in_stages(size_t count, unsigned stages, size_t distance) {
    return (staged_walk){
        .count = count, .end = count + stages * distance, .distance = distance, .stages = stages};
}

// A walk over the rows of a step. Of few rows each comes once, for its turn.
static inline staged_walk walk_rows(size_t rows, unsigned stages, size_t distance) {
    if (rows < MANY_ROWS)
        return (staged_walk){.count = rows, .end = rows, .stages = stages, .first = stages, .next = stages};
    return walk_in_stages(rows, stages, distance);
}

// Goes on to the next item and its stage. Returns false at the end.
static inline bool next_stage(staged_walk *w) {
    while (w->ahead < w->end) {
        w->stage = w->next;
        w->item = w->ahead - w->lag; // wraps around before the first item
        if (w->stage == w->stages) {
            w->next = w->first;
            w->lag = 0;
            w->ahead++;
        } else {
            w->next++;
            w->lag += w->distance;
        }
        if (w->item < w->count)
            return true;
    }
    return false;
}

#endif

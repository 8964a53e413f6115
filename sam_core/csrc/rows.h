// SPDX-License-Identifier: Apache-2.0
//
// The rows of a step with many requests, which do not fit the caches.
//
// Prefetching. The memory of a row is prefetched some rows ahead, in stages: each stage reads what the stage
// before it has prefetched, and neighbouring rows are in successive stages. Blocks of rows (below) are fed in
// the same way, but a token at a time. For an early step the matches of a block's rows are found side by side. Before a
// block is drafted, each stage is done for all of its rows; it is drafted some rows at a time (rule_draft), which
// prefetches what their later tokens need. For a few rows it does not pay.
//
// Threads. Rows of different groups share no index, and drafting changes nothing but the row's own slot. So
// several threads feed and draft blocks of rows; a block that is fed has whole groups. Each thread begins with the
// same rows in every step while the requests stay, so that its cache has them; then it takes blocks of others. The
// threads live until the pool is freed. The result is that of the loops of pool_step, in the order of the rows, for
// any number of threads:
//   - a group's rows are fed in blocks only if the indexes of those that draft exist and have at least a part of
//     their texts; the loops feed the others later. The work and the memory of the step must suffice for all that
//     drafting rows lack, so that this order changes nothing;
//   - other threads learn from the tokens of the step, each a lesson in the order of the rows, while the caller's
//     stores them, and then while the rest feed, or find the matches of an early step. Drafting and making room wait
//     for them;
//   - a block has an account of its own, with an equal part of the free memory. If that does not suffice, or
//     if little memory is free, the rest is left to the loops, which can make room;
//   - rows that draft nothing, and other texts of the groups, are fed by the loops, in between. The rows of
//     such groups are drafted after that.

#ifndef ROWS_H
#define ROWS_H

#include "pool.h"

enum {
    MANY_ROWS = 256, // for which prefetching pays
    ROWS_AHEAD = 4   // between two stages of it
};
#ifndef ROWS_FED
#define ROWS_FED 64u     // rows of a block that is fed, at least, but for the last block
#define ROWS_DRAFTED 16u // rows of another block
#define ROWS_THREAD 128u // rows for which another thread pays
#endif

// Ends the threads.
void rows_end(pool *p);

// Drafts and drafted tokens.
typedef struct {
    uint64_t drafts[RULE_SOURCES], drafted[RULE_SOURCES];
} rows_counts;

// Prefetch what a row needs to store its tokens, to learn from them, to be fed and to draft, in so many stages.
enum { STORE_ASKS = 3, LEARN_ASKS = 3, FEED_ASKS = SAM_APPEND_ASKS + 1, DRAFT_ASKS = SAM_MATCH_ASKS + 1 };
void rows_ask_store(const pool *p, const pool_row *row, unsigned step);
void rows_ask_learn(const pool *p, const pool_row *row, unsigned step, int first, int end);
void rows_ask_feed(const pool *p, pool_row *row, unsigned step);
void rows_ask_draft(const pool *p, pool_row *row, unsigned step);

// Feeds the drafting rows of a large step, and with `out` drafts those that need nothing else; or does nothing.
// Sets `fed` and `drafted` of these rows.
void rows_feed(pool *p, size_t rows, const pool_drafts *out);

// Drafts the rows of a large step that are not drafted yet, but for those that are out of memory; or does nothing.
void rows_draft(pool *p, size_t rows, const pool_drafts *out);

// Lets other threads learn from the tokens of a large step. Returns false if there are none: nothing is done.
bool rows_learn(pool *p, size_t rows);
void rows_wait_until_learned(pool *p);

// Waits until all is learned and no thread works.
void rows_end_step(pool *p);

// In pool.c: learns the lessons from `first` to before `end` from the tokens of the step's rows. Storing and feeding them
// changes nothing that it reads or changes, unless that makes room, or begins an index: so rows are `marked` before, whose
// groups have one.
void pool_learn(pool *p, size_t rows, int first, int end, bool marked);
void pool_mark_groups(pool *p, size_t rows);

// In pool.c: whether a row's indexes lack more than its new tokens, or are to be begun. The loops feed such drafting rows
// after the others.
bool pool_is_behind(const pool *p, const pool_row *row);

// In pool.c: the search for the match of a row's text in one of its indexes. Writes those that begin to `searches`
// [RULE_INDEXES]; returns how many. Steps are as those of sam_search.
typedef struct {
    sam_search search;
    pool_row *row;
    int source;
} pool_search;
uint32_t pool_begin_match(const pool *p, pool_row *row, pool_search *searches);
bool pool_search_step(pool_search *search);

// In pool.c: drafts for at most RULE_BESIDE rows of the step, with memory from `memory`, and counts that. Returns how
// many of these rows, in their order, are drafted; fewer than `count` without memory.
uint32_t pool_draft(const pool *p, const uint32_t *rows, uint32_t count, const pool_drafts *out,
                    rule_work *work, sam_memory *memory, rows_counts *counts);
void pool_count(pool *p, const rows_counts *counts);

#endif

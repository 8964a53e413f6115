// SPDX-License-Identifier: Apache-2.0
//
// Threads that share a step of many rows.
//
// Rows of different groups share no index, and drafting changes nothing but the row's own slot. So
// several threads feed and draft blocks of rows; a block that is fed has whole groups. Each thread begins with the
// same rows in every step while the requests stay, so that its cache has them; then it takes blocks of others. The
// threads live until the pool is freed. The result is that of the loops of pool_step, in the order of the rows, for
// any number of threads:
//   - a group's rows are fed in blocks only if the indexes of those that draft exist and have at least a part of
//     their texts; the loops feed the others later. The work and the memory of the step must suffice for all that
//     drafting rows lack, so that this order changes nothing;
//   - other threads learn from the tokens of the step, each a lesson in the order of the rows, while the caller's
//     stores them, and then while the rest feed, or find matches, with index_later. Drafting and eviction wait
//     for them;
//   - a block has an account of its own, with an equal part of the free memory. If that does not suffice, or
//     if little memory is free, the rest is left to the loops, which can free some;
//   - rows that draft nothing, and other texts of the groups, are fed by the loops, in between. The rows of
//     such groups are drafted after that.
//
// A block of rows is fed a token at a time, with prefetching. With index_later the matches of a block's rows are
// found in turn, a step of each search. Before a block is drafted, each stage of prefetching is done for all of
// its rows; it is drafted some rows at a time (rule_draft), which prefetches what their later tokens need.

#ifndef THREADS_H
#define THREADS_H

#include "state.h"

#ifndef THREADS_FED
#define THREADS_FED 64u     // rows of a block that is fed, at least, but for the last block
#define THREADS_DRAFTED 16u // rows of another block
#define THREADS_ROWS 128u   // rows for which another thread pays
#endif

// Learns from the tokens of a step. In a large step that drafts other threads do so from here on.
void threads_learn(pool *p, size_t rows);
void threads_wait_until_learned(pool *p);

// Feeds the drafting rows of a large step, and with `out` drafts those that need nothing else; or does nothing.
// Sets `fed` and `drafted` of these rows.
void threads_feed(pool *p, size_t rows, const pool_drafts *out);

// Drafts the rows of a large step that are not drafted yet, but for those that are out of memory; or does nothing.
void threads_draft(pool *p, size_t rows, const pool_drafts *out);

// Waits until all is learned and no thread works.
void threads_end_step(pool *p);

// Ends the threads.
void threads_end(pool *p);

#endif

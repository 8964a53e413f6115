// SPDX-License-Identifier: Apache-2.0
//
// One row of a step: learns from its tokens, feeds them to the indexes of its slot, finds matches in these and drafts.

#ifndef ROW_H
#define ROW_H

#include "state.h"

// ---- learning

static inline bool has_group_index(const pool_slot *slot) { return slot->group && slot->group->index.memory; }

// Learns the lessons from `first` to before `end` from what came after the slot's last draft. in_group: as
// has_group_index. Storing and feeding tokens changes nothing that this reads or changes, unless it frees memory or
// begins an index.
void row_learn(pool *p, pool_slot *slot, const int32_t *tokens, size_t count, int first, int end,
               bool in_group);

// ---- feeding

// Whether the indexes of a row lack more than its new tokens, or are to be begun.
bool row_is_behind(const pool *p, const pool_row *row);

// Feeds the rest of a slot's text to its indexes, until the work of this call is used up. row_catch_up: also counts a
// slot that has no memory for them.
void row_feed(pool *p, pool_slot *slot);
void row_catch_up(pool *p, pool_slot *slot);

// Counts a slot that cannot draft for lack of memory, once.
void row_count_exhausted(pool *p, pool_slot *slot);

// ---- drafting

// The search for the match of a row's text in one of its indexes. row_begin_match writes those that begin to `searches`
// [RULE_INDEXES] and returns how many; steps are as those of sam_search.
typedef struct {
    sam_search search;
    pool_row *row;
    int source;
} row_search;
uint32_t row_begin_match(const pool *p, pool_row *row, row_search *searches);
bool row_search_step(row_search *search);

// Drafts and drafted tokens.
typedef struct {
    uint64_t drafts[RULE_SOURCES], drafted[RULE_SOURCES];
} draft_counts;

// Drafts for at most RULE_BATCH rows of the step, by their numbers, with memory from `memory`, and counts that.
// Returns how many of these rows, in their order, are drafted; fewer than `count` without memory.
uint32_t row_draft(const pool *p, const uint32_t *rows, uint32_t count, const pool_drafts *out,
                   rule_work *work, sam_memory *memory, draft_counts *counts);
void row_count_drafts(pool *p, const draft_counts *counts);

#endif

// SPDX-License-Identifier: Apache-2.0
//
// Memory accounting: what is free, what closed groups hold that could be freed, and what is freed bit by bit.

#ifndef ACCOUNT_H
#define ACCOUNT_H

#include "state.h"

enum { INDEX_TOKEN_BYTES = 56 }; // approximate bytes per token of an automaton, with room to grow

// Bytes that are free or can be freed without loss to open slots, for this purpose.
size_t account_available(const pool *p, pool_purpose purpose);

// Bytes that must be available before indexing `tokens` that did not fit is tried again.
size_t account_needed(const pool *p, uint64_t tokens);

// Frees an index, a large one in portions: the pool takes it over. The caller's is zeroed.
void account_discard(pool *p, sam_index *index);

// Frees a portion of the discarded indexes. Returns whether there was one.
bool account_free_discarded(pool *p);

// Moves a group's link at offset `link_at` to the end of a list; NULL: to none.
void account_move(pool_group *g, size_t link_at, pool_list *list);

// Moves a group to the right lists after a change of its open slots or its automaton, and counts its bytes there.
void account_update(pool *p, pool_group *g);

// Removes a group from all lists and sums.
void account_remove(pool *p, pool_group *g);

// Counts that a life of the group begins. account_lives: how many began recently.
void account_count_life(pool *p, const pool_group *g);
static inline uint8_t account_lives(const pool *p, const pool_group *g) {
    return p->groups.lives[g->hash % POOL_LIVES];
}

#endif

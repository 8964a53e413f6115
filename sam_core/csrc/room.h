// SPDX-License-Identifier: Apache-2.0
//
// Frees memory when a pool reaches its limit, in this order, until the request fits:
//
//   for any purpose:
//   1. automata of closed groups, the group closed longest ago first; they are built again from their texts
//   for slots that could not draft otherwise, or to build a group's automaton:
//   2. request indexes of slots whose text is in their group's automaton; only after 3 while closed groups
//      hold more than half of the memory
//   3. the older half of a closed group's texts (evicted_history), or the group with its last text
//      (evicted_groups)
//   4. closed texts of open groups that are in no automaton
//   5. the older half of the closed texts in the automaton of the open group with the fewest accepted tokens
//      per step and byte (evicted_history); to build another group's automaton only if that has twice as many
//
// If the request still does not fit, a group's automaton is freed (evicted_groups) or the slot does not draft
// (exhausted), until enough memory is free or can be freed by 1 and 3.
//
// Closed groups are evicted by the W-TinyLFU policy (Einziger et al., "TinyLFU: A Highly Efficient Cache
// Admission Policy", 2017). A recently closed group is `fresh`; fresh groups have an eighth of the memory of
// all closed groups. A group that leaves them is `settled`. The group that settled last competes with the
// eight that settled first, and the one with the lowest value is evicted: its recent lives, which are counted
// for evicted groups as well, times its accepted tokens per token held. So groups that recur in turns do not
// all miss, as they would if the oldest were always evicted. The candidates then queue again as if they had just
// settled: the value falls with the texts of a group, so that all groups are thinned before one of many like it is
// forgotten, and a prompt seen once an epoch keeps some of its answers.

#ifndef ROOM_H
#define ROOM_H

#include "pool.h"

enum { ROOM_TOKEN_BYTES = 56 }; // approximate bytes per token of an automaton, with room to grow

// make_room of the pool's sam_memory; `owner` is the pool.
bool room_make(void *owner);

// Bytes that are free or can be freed without loss to open slots, with this power.
size_t room_for(const pool *p, pool_power power);

// Bytes that must be available before indexing `tokens` that did not fit is tried again.
size_t room_needed(const pool *p, uint64_t tokens);

// Takes an index over and frees it, a large one in portions. The index is zeroed.
void room_discard(pool *p, sam_index *index);

// Frees a portion of the discarded large indexes. Returns whether there was one.
bool room_free_dying(pool *p);

// A life of the group begins.
void room_note_life(pool *p, const pool_group *g);

// Moves a group to the right lists after a change of its open slots or its automaton.
void room_relist(pool *p, pool_group *g);

#endif

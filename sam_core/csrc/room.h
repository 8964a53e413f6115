// SPDX-License-Identifier: Apache-2.0
//
// What is freed when a pool's memory is used up, by what it is worth.
//
//   for all purposes:
//   1. automata of closed groups, the group closed longest ago first; they are built again from their texts
//   and for slots that could not draft otherwise, or to build a group's automaton, in this order:
//   2. request indexes of slots whose group's automaton has their text; after 3 while closed groups hold more
//      than half of the memory
//   3. of a closed group the older half of its texts, or with the last one the group       evicted_history,
//                                                                                          evicted_groups
//   4. closed texts of open groups that are in no automaton
//   5. half of the closed texts in the automaton of the open group that gives the fewest accepted tokens a
//      step and byte, the oldest texts; to build another one's only if that gives twice as many
//                                                                                         evicted_history
// If that does not help, a group's automaton is freed (evicted_groups), or the slot does not draft
// (exhausted), until there is memory again: what is free or is freed by 1 and 3.
//
// Closed groups are kept by the W-TinyLFU policy (Einziger et al., "TinyLFU: A Highly Efficient Cache
// Admission Policy", 2017). A group that was closed lately is `fresh`, an eighth of the memory of all closed
// ones is theirs. What leaves there is `settled`. Of the settled, the one that settled last and the eight
// that settled first compete, and the one worth least goes: lives that began lately, known also of groups
// that are gone, times accepted tokens a token held. So groups that come back in turns do not all miss each
// other, as they would if the oldest always went.

#ifndef ROOM_H
#define ROOM_H

#include "pool.h"

enum { ROOM_TOKEN_BYTES = 56 }; // of an automaton, about, with room to grow

// Frees something; asked for by sam_resize. `owner` is the pool.
bool room_make(void *owner);

// Bytes that could be had without loss to open slots.
size_t room_available(const pool *p);

// Bytes that must be available before `tokens` are indexed that did not fit before.
size_t room_needed(const pool *p, uint64_t tokens);

// Takes an index and frees it, a large one bit by bit. The index is zeroed.
void room_discard(pool *p, sam_index *index);

// Frees a bit of the large indexes that were discarded. Returns whether there was one.
bool room_free_dying(pool *p);

// A life of the group begins.
void room_note_life(pool *p, const pool_group *g);

// Puts a group where it belongs after a change of its open slots or its automaton.
void room_relist(pool *p, pool_group *g);

#endif

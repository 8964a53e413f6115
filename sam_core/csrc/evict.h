// SPDX-License-Identifier: Apache-2.0
//
// Eviction: what is freed when a pool reaches its memory limit. Freed in this order, until the request fits:
//
//   for any purpose:
//   1. automata of closed groups, the group closed longest ago first; they are built again from their texts
//   and, unless the request is dispensable (POOL_FOR_SPARE):
//   2. request indexes of slots whose text is in their group's automaton; only after 3 while closed groups
//      hold more than half of the memory
//   3. the older half of a closed group's texts (evicted_history), or the group with its last text
//      (evicted_groups)
//   4. closed texts of open groups that are in no automaton
//   5. the older half of the closed texts in the automaton of the open group with the fewest accepted tokens
//      per step and byte (evicted_history); for another group's automaton only if that group has twice this value
//
// If the request still does not fit, a group's automaton is freed (evicted_groups) or the slot does not draft
// (exhausted), until enough memory is free or can be freed by 1 and 3.
//
// Closed groups are evicted by the W-TinyLFU policy (Einziger et al., "TinyLFU: A Highly Efficient Cache
// Admission Policy", 2017). A closed group enters the window, which has an eighth of the memory of all closed
// groups. The oldest groups leave it for the main list. The newest group of that list competes with its eight
// oldest, and the one with the lowest value is evicted. The value is the number of recent lives, which are counted
// for evicted groups as well, times the accepted tokens per token held. So groups that recur in turns do not all
// miss, as they would if the oldest were always evicted. The candidates then move to the end of the main list: the
// value falls with the texts of a group, so that all groups are thinned before one of many like it is forgotten, and
// a prompt seen once an epoch keeps some of its answers.

#ifndef EVICT_H
#define EVICT_H

#include "state.h"

// Frees something for the purpose in p->freeing. Returns false if nothing is left that may be freed. Everything that
// the step learns must be learned: it decides what groups are worth.
bool evict(pool *p);

#endif

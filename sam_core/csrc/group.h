// SPDX-License-Identifier: Apache-2.0
//
// The texts of a prompt or name, and one automaton over them that is fed bit by bit.
//
// What is fed, while the work of a call lasts:
//   1. the text of the slot that asks (group_catch_up)
//   2. the queue: texts that were opened, or have grown, since the automaton was begun
//   3. closed texts that it has not got, the newest first. They are marked as older than what is there, so
//      "newest" means the text opened last, in whatever order texts are fed.
// The automaton drafts at any time from what it has. It is begun when there are two texts: one alone is in
// its slot's request index.
//
// A text that was removed, and all of one that is fed again from its beginning, stays in the automaton until
// that is freed.

#ifndef GROUP_H
#define GROUP_H

#include "pool.h"

static inline bool has_source(const pool *p, int source) { return p->sources >> source & 1; }

static inline sam_kind index_kind(const pool *p) {
    return p->rule == RULE_OLDEST ? SAM_OLDEST : p->rule == RULE_NEWEST ? SAM_NEWEST : SAM_COUNTED;
}

// The text of a number, NULL if it was freed.
static inline pool_text *text_of(const pool_group *g, uint32_t number) {
    return (pool_text *)g->texts[number];
}

// Feeds a text of `size` tokens to an index up to its end, as far as the work of this call goes. False: no
// memory, and the index is as it was but for what was fed before.
bool feed(pool *p, sam_index *index, sam_cursor *cursor, uint32_t number, uint32_t size);

void group_move(pool_group *g, size_t link_at, pool_list *list);

pool_group *group_find(const pool *p, uint64_t hash, pool_key kind, const void *key, size_t bytes);
uint64_t group_hash(pool_key kind, const void *key, size_t bytes);

// The group of a key with one more open slot. NULL: no memory.
pool_group *group_join(pool *p, pool_key kind, const void *key, size_t bytes);

// Ends a slot's membership.
void group_leave(pool *p, pool_group *g);

// Frees a group without open slots.
void group_remove(pool *p, pool_group *g);

// Lists the text of a slot that has joined the group. False: no memory for the list.
bool group_enter(pool *p, pool_group *g, pool_text *text);

// A text has grown by `count` tokens.
void group_grew(pool_group *g, pool_text *text, uint32_t count);

// The slot of a text is closed; keep: its text stays.
void group_close_text(pool *p, pool_group *g, pool_text *text, bool keep);

// Frees a text that is not in the automaton and not in the queue.
void group_free_text(pool *p, pool_group *g, pool_text *text);

// Feeds the automaton what it lacks of a text of an open slot; begins the automaton if it is worth having.
void group_catch_up(pool *p, pool_group *g, pool_text *text, pool_power power);

// Feeds the automaton, if it is begun, what it lacks of other texts.
void group_feed_others(pool *p, pool_group *g);

// Whether a slot may draft from the automaton: it has all of the slot's text.
static inline bool group_is_ready(const pool_group *g, const pool_text *text) {
    return g->index.memory && text->indexed && text->cursor.length == text->body.size;
}

// Frees the automaton, and the texts that are removed.
void group_drop_index(pool *p, pool_group *g);

// The same, to build it again with half of the closed texts, the newest, until there is more memory.
void group_shrink(pool *p, pool_group *g);

#endif

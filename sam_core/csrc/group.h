// SPDX-License-Identifier: Apache-2.0
//
// The texts of a prompt or name, and one automaton over them that is fed in portions.
//
// A call feeds in this order, until its work is used up:
//   1. the text of the calling slot (group_catch_up)
//   2. the queue: texts that were opened or have grown since the automaton was begun
//   3. closed texts that are not in the automaton, the newest first. They are marked as older than its
//      contents, so "newest" means the text opened last, in whatever order texts are fed.
// Slots draft from the part that has been fed. An automaton is begun when the group has two texts: a single
// text is in its slot's request index.
//
// A removed text, and the earlier copy of a text that is fed again from its beginning, stay in the automaton
// until it is freed.
//
// The automaton has the prompt of its first text once; the texts that begin with it branch off after it.

#ifndef GROUP_H
#define GROUP_H

#include "state.h"

#include <string.h>

enum { GROUP_MAX_LOST = 32 };

// Whether the tokens begin with all of `start`.
static inline bool begins_with(const int32_t *tokens, size_t size, const int32_t *start, size_t start_size) {
    return start_size <= size && (!start_size || memcmp(tokens, start, start_size * sizeof(int32_t)) == 0);
}

// Feeds the rest of a text of `size` tokens to an index, until the work of this call is used up. Returns false without
// memory; the tokens that were fed stay.
bool index_feed(pool *p, sam_index *index, sam_cursor *cursor, uint32_t number, uint32_t size);

// The group of a key: a prompt as int32_t, or a name. NULL: none.
pool_group *group_find(const pool *p, pool_key kind, const void *key, size_t bytes);
uint64_t group_hash(pool_key kind, const void *key, size_t bytes);

// ---- groups and texts of their own, as persist.c makes them

// A new closed group, in no table or list; the caller writes its key. NULL: no memory.
pool_group *group_new(pool *p, pool_key kind, size_t key_bytes);

// Adds a new group, whose key no other has, with its texts as the most recently closed one. Returns false without
// memory.
bool group_add(pool *p, pool_group *g);

// Frees a new group that was not added.
void group_free(pool *p, pool_group *g);

// A new text with room for `size` tokens; the caller writes them and body.size. NULL: no memory.
pool_text *text_new(pool *p, uint32_t prompt_size, uint32_t size);

// Adds a text to a new group. Returns false without memory; the text is freed then.
bool group_add_closed_text(pool *p, pool_group *g, pool_text *text);

// Frees a text that no group lists. A pinned text keeps its memory until it is unpinned, but not on the pool's account.
void text_free(pool *p, pool_text *text);

// Keeps the tokens of a closed text, which never change, in place until it is unpinned the same number of times, even
// if the pool frees the text. Its memory then does not count against the pool's limit.
void text_pin(pool_text *text);
void text_unpin(pool_text *text);

// ---- groups of slots

// The group of a key, new if need be, with one more open slot. NULL: no memory.
pool_group *group_join(pool *p, pool_key kind, const void *key, size_t bytes);

// Ends a slot's membership. The group is freed after its last slot if it has no texts or history is no source.
void group_leave(pool *p, pool_group *g);

// Frees a group without open slots.
void group_remove(pool *p, pool_group *g);

// Adds the text of a slot that has joined the group to its list. Returns false without memory.
bool group_add_text(pool *p, pool_group *g, pool_text *text);

// A text has grown by `count` tokens.
void group_grew(pool_group *g, pool_text *text, uint32_t count);

// The closed text that a slot with this prompt continues: all of the text begins the prompt, or all but its last
// GROUP_MAX_LOST tokens at most, and a part of its answer. (An engine that cuts an answer short may have sampled
// tokens that it does not give out.) Of several the one that shares most tokens, then the shortest, then the newest.
// NULL: none, as always in a group by prompt, whose slots begin with the prompt alone.
pool_text *group_find_start(const pool_group *g, const int32_t *prompt, size_t size);

// A slot continues a closed text, which belongs to this life of the group from now on.
void group_reopen(pool *p, pool_group *g, pool_text *text, uint32_t slot);

// Removes a closed text.
void group_forget_text(pool *p, pool_group *g, pool_text *text);

// The slot of a text was closed; keep: the text stays.
void group_close_text(pool *p, pool_group *g, pool_text *text, bool keep);

// Frees a text that is not in the automaton and not in the queue.
void group_free_text(pool *p, pool_group *g, pool_text *text);

// Feeds the rest of an open slot's text to the automaton, which it begins if that is worthwhile.
void group_catch_up(pool *p, pool_group *g, pool_text *text, pool_purpose purpose);

// Removes fed texts from the front of the queue. Returns whether nothing is left to be fed to the automaton.
bool group_drop_fed(pool_group *g);

// Feeds the rest of other texts to the automaton, if it is begun.
void group_feed_others(pool *p, pool_group *g);

// Whether the group should have an automaton.
static inline bool group_is_worthwhile(const pool *p, const pool_group *g) {
    return g->kept > 1 || !has_source(p, RULE_REQUEST);
}

// Whether a slot may draft from the automaton: all of the slot's text is in it.
static inline bool group_is_ready(const pool_group *g, const pool_text *text) {
    return g->index.memory && text->indexed && text->cursor.length == text->body.size;
}

// Frees the automaton and the removed texts.
void group_drop_index(pool *p, pool_group *g);

// Frees the automaton and the removed texts. It will be built again with the newer half of the closed texts,
// until there is more memory.
void group_shrink(pool *p, pool_group *g);

#endif
